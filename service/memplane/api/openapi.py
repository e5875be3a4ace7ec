"""The OpenAPI document: FastAPI's for admin, health and metrics, ours for the six nodes.

FastAPI never sees the node calls (they are answered before it), so their schemas stand in `node_schemas.py`.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from memplane.api.node_schemas import ERROR_RESPONSES, SCHEMAS, node_operation
from memplane.contracts import NODES
from memplane.settings import AuthSettings

Document = dict[str, Any]

DESCRIPTION = """\
The memory plane for AI agents. `POST /v1/nodes/{NODE}` takes a node's input and always answers 200 with a NodeResult
once the request itself was acceptable: read `status` and `error`. Every answer carries `X-Request-Id`. Errors of the
request have the form `{"error": {"code", "message"}, "requestId"}`.
"""

_METHODS = ("get", "post", "put", "delete")


def openapi_document(app: FastAPI, auth: AuthSettings) -> Document:
    """The whole document of an application whose routes are all in place."""
    from fastapi.openapi.utils import get_openapi

    document = get_openapi(
        title="memplane",
        version=version("memplane"),
        description=DESCRIPTION,
        routes=app.routes,
        openapi_version="3.1.0",
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.update(SCHEMAS)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                _finish(item[method], identified=path.startswith(_IDENTIFIED))
    for node in NODES:
        document["paths"][f"/v1/nodes/{node}"] = {"post": node_operation(node)}
    if auth.mode != "none":
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
    return document


_IDENTIFIED = ("/v1/admin/", "/v1/recovery/", "/v1/capabilities")
"""Paths whose callers are told apart."""


def _finish(operation: Document, *, identified: bool) -> None:
    """Replace FastAPI's own idea of errors with ours, and mark what needs no credential."""
    responses = operation["responses"]
    invalid = responses.pop("422", None)
    if identified:
        responses.update({status: ERROR_RESPONSES[status] for status in ("401", "403", "503")})
        if invalid is not None:
            responses["400"] = ERROR_RESPONSES["400"]
    else:
        operation["security"] = []
