"""Writes the reference pages that follow from the code: settings, commands, HTTP API. `make docs`.

A test compares the pages with what this gives, so they cannot fall behind.
"""

from __future__ import annotations

import asyncio
import enum
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union

import httpx
import typer
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from docs.backend_page import backend_page
from docs.cases import cases_page
from memplane.api.compose import ServiceProcess
from memplane.cli.app import app as commands
from memplane.settings import ENV_PREFIX, Settings

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by `make docs`; change the code instead. -->\n"


def main() -> None:
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """The generated pages by file name."""
    return {
        "settings.md": settings_page(),
        "cli.md": commands_page(),
        "api.md": api_page(),
        "memorybackend.md": backend_page(NOTE),
        "cases.md": cases_page(NOTE),
    }


# Settings ------------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Every field of every section, with its environment variable."""
    lines = [
        "# Settings",
        NOTE,
        "A process reads its defaults, then the YAML file named by `--config` or `MEMPLANE_CONFIG_FILE`, then the",
        "environment: `MEMPLANE_POSTGRES__POOL_MAX` is `pool_max` of the section `postgres`. Unknown fields are",
        "refused, and an error names the field, never its value. A secret may be given as a file (`…_file`), which is",
        "read again after an authentication failure.",
    ]
    for name, section in Settings.model_fields.items():
        lines += ["", f"## {name}", "", *([f"{section.description}.\n"] if section.description else [])]
        lines += _section(_section_model(section), name)
    return "\n".join(lines) + "\n"


def _section_model(section: FieldInfo) -> type[BaseModel]:
    """The model of a section, whether it may be left out or not."""
    kinds = typing.get_args(section.annotation) or (section.annotation,)
    [model] = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
    return model


def _section(model: type[BaseModel], path: str) -> Iterator[str]:
    if model.__doc__ and model.__doc__ != BaseModel.__doc__:
        yield f"{' '.join(model.__doc__.split())}\n"
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    nested: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            nested.append((name, field.annotation))
            continue
        bounds = _bounds(field)
        yield f"| `{name}` | {_type(field.annotation)}{bounds} | {_default(field)} | {_cell(field.description or '')} |"
    variable = (ENV_PREFIX + path.replace(".", "__") + "__" + next(iter(model.model_fields))).upper()
    yield f"\nIn the environment, for example: `{variable}`."
    for name, inner in nested:
        yield f"\n### {path}.{name}\n"
        yield from _section(inner, f"{path}.{name}")


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(one) for one in arguments if one is not type(None))
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in arguments)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in (tuple, list, frozenset):
        return "list of " + _type(arguments[0])
    if origin is dict or annotation is dict:
        return "mapping"
    names = {SecretStr: "secret", str: "text", int: "integer", float: "number", bool: "boolean", Path: "path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _bounds(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [
        f"{sign} {getattr(rule, name):g}"
        for rule in field.metadata
        for name, sign in signs.items()
        if getattr(rule, name, None) is not None
    ]
    return f" ({', '.join(found)})" if found else ""


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True) if field.default_factory else field.default
    if value is None or value is PydanticUndefined:
        return ""
    if isinstance(value, tuple):
        value = list(value)
    return f"`{value.value if isinstance(value, enum.Enum) else value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# Commands ------------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command with its arguments and options."""
    lines = [
        "# Commands",
        NOTE,
        "`memplane COMMAND --help` says the same. Results go to stdout and everything else to stderr; with `--json`,",
        "before the command, a result is one JSON document.",
        "",
        *_command(typer.main.get_command(commands), "memplane"),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _command(command: Any, path: str) -> Iterator[str]:
    yield f"## `{path}`"
    yield ""
    yield " ".join((command.help or "").replace("\b", "").split())
    yield ""
    rows = [row for row in (_parameter(one) for one in command.params) if row]
    if rows:
        yield "| option | default | meaning |"
        yield "|---|---|---|"
        yield from rows
        yield ""
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _command(inner, f"{path} {name}")


def _parameter(parameter: Any) -> str:
    if parameter.name == "help" or getattr(parameter, "hidden", False):
        return ""
    if parameter.param_type_name == "argument":
        name = f"`{parameter.name.upper()}`"
    else:
        name = ", ".join(f"`{one}`" for one in parameter.opts)
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        name += f" ({', '.join(one.value for one in kind)})"
    default = getattr(parameter, "default", None)
    shown = "" if default in (None, False, (), "") or callable(default) else f"`{default}`"
    return f"| {name} | {shown} | {_cell(getattr(parameter, 'help', '') or '')} |"


# HTTP API ------------------------------------------------------------------------------------------------------------


def api_page() -> str:
    """Every path and method of the OpenAPI document, and the schemas of the nodes."""
    document = asyncio.run(_openapi())
    lines = [
        "# HTTP API",
        NOTE,
        " ".join(document["info"]["description"].split()),
        "",
        "The service shows this document with all schemas at `/docs`, and as JSON at `/openapi.json`.",
        "",
        "| call | does | answers |",
        "|---|---|---|",
    ]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            answers = ", ".join(sorted(operation["responses"]))
            lines.append(f"| `{method.upper()} {path}` | {_cell(operation.get('summary', ''))} | {answers} |")
    lines += ["", "## Inputs of the nodes"]
    for path, item in document["paths"].items():
        if path.startswith("/v1/nodes/"):
            body = item["post"]["requestBody"]["content"]["application/json"]["schema"]
            lines += ["", f"### {path.rsplit('/', 1)[1]}", "", *_fields(_resolved(body, document), document)]
    return "\n".join(lines) + "\n"


async def _openapi() -> dict[str, Any]:
    settings = Settings.model_validate({"postgres": {"dsn": "postgresql://localhost/x"}, "auth": {"mode": "none"}})
    process = ServiceProcess(settings)  # builds everything and connects to nothing
    try:
        transport = httpx.ASGITransport(app=process.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.get("/openapi.json")
    finally:
        await process.close()
    document: dict[str, Any] = answer.raise_for_status().json()
    return document


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
    return found


def _fields(schema: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    required = set(schema.get("required", ()))
    yield "| field | type | required | meaning |"
    yield "|---|---|---|---|"
    for name, field in schema.get("properties", {}).items():
        resolved = _resolved(field, document)
        meaning = field.get("description") or resolved.get("description", "")
        yield f"| `{name}` | {_kind(field, document)} | {'yes' if name in required else ''} | {_cell(meaning)} |"


def _kind(schema: dict[str, Any], document: dict[str, Any]) -> str:
    schema = _resolved(schema, document)
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_kind(one, document) for one in alternatives))
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    kind = schema.get("type", "any JSON")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        items = _resolved(schema.get("items", {}), document)
        if inner := items.get("properties"):
            return f"list of {{{', '.join(inner)}}}"
        return f"list of {_kind(items, document)}"
    return str(kind)


if __name__ == "__main__":
    main()
