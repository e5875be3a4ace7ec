"""`/openapi.json`, and `/docs`: a reference made from it, one page without scripts, styles or fonts from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h2{margin-top:2.5rem;border-bottom:1px solid #d0d7de}code,pre{font:14px/1.45 ui-monospace,monospace;background:#f6f8fa}
pre{padding:.75rem;overflow:auto;border-radius:6px}.m{font-weight:700}details{margin:.5rem 0}summary{cursor:pointer}
table{border-collapse:collapse}td,th{border:1px solid #d0d7de;padding:.25rem .6rem;text-align:left;vertical-align:top}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def reference_router(document: dict[str, Any]) -> APIRouter:
    """Serves a finished OpenAPI document; both answers are made once."""
    router = APIRouter(include_in_schema=False)
    as_json = json.dumps(document, ensure_ascii=False).encode("utf-8")
    as_html = render_reference(document)

    @router.get("/openapi.json")
    async def openapi() -> Response:
        return Response(as_json, media_type="application/json")

    @router.get("/docs")
    async def docs() -> HTMLResponse:
        return HTMLResponse(as_html, headers={"Content-Security-Policy": _POLICY})

    return router


def render_reference(document: dict[str, Any]) -> str:
    """The document as a page for people."""
    info = document["info"]
    paths = sorted(document["paths"].items(), key=lambda item: not item[0].startswith("/v1/nodes/"))
    operations = "".join(_operation(path, method, body) for path, item in paths for method, body in item.items())
    schemas = "".join(
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{_pre(schema)}</details>'
        for name, schema in sorted(document["components"]["schemas"].items())
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])} API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"
        f'<p>Machines read <a href="openapi.json">openapi.json</a>.</p>{operations}<h2>Schemas</h2>{schemas}'
        "</body></html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    heading = f'<h2><span class="m">{escape(method.upper())}</span> <code>{escape(path)}</code></h2>'
    text = f"<p>{escape(operation.get('summary', ''))}. {escape(operation.get('description', ''))}</p>"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    parts = [heading, text, _parameters(operation.get("parameters", []))]
    if "example" in body:
        example = json.dumps(body["example"], ensure_ascii=False)
        command = (
            f"curl -X POST $URL{path} -H 'Content-Type: application/json' \\\n"
            f"  -H \"Authorization: Bearer $KEY\" -H 'X-Memory-User: ann' \\\n  -d '{example}'"
        )
        parts.append(f"<pre>{escape(command)}</pre>")
    if "schema" in body:
        parts.append(f"<details><summary>Body</summary>{_pre(body['schema'])}</details>")
    for status, response in operation["responses"].items():
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        inner = f"<summary><code>{escape(status)}</code> {escape(response.get('description', ''))}</summary>"
        parts.append(f"<details>{inner}{_pre(schema) if schema else ''}</details>")
    return "".join(parts)


def _parameters(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(one['in'])}</td>"
        f"<td>{escape(one.get('description', ''))}</td><td><code>{escape(json.dumps(one['schema']))}</code></td></tr>"
        for one in parameters
    )
    return f"<table><tr><th>Parameter</th><th>in</th><th>meaning</th><th>schema</th></tr>{rows}</table>"


def _pre(schema: dict[str, Any]) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre>"
