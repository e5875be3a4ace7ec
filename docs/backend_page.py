"""The reference page of the `MemoryBackend` resource, from its schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memplane_operator.api.crd import COLUMNS, GROUP, KIND, VERSION, crd


def backend_page(note: str) -> str:
    """Every field of spec and status with type, default, limits and meaning; then the rules and the columns."""
    root = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema = root["properties"]
    lines = [
        f"# {KIND} (`{GROUP}/{VERSION}`)",
        note,
        "Short name `mb`. What is marked *required* has no default. See [Kubernetes](../kubernetes.md) for an example.",
    ]
    for part in ("spec", "status"):
        lines += ["", f"## {part}", "", "| field | type | default | meaning |", "|---|---|---|---|"]
        lines += _rows(schema[part], "")
    lines += ["", "## Rules", "", "The API server refuses an object that breaks one of these, with these words.", ""]
    rules = [rule["message"] for rule in root["x-kubernetes-validations"]]
    lines += [f"- {message}" for message in (*rules, *_messages(schema["spec"]))]
    lines += ["", "## Columns of `kubectl get mb`", ""]
    lines += [f"- **{name}**: {text}" for name, _, text, _ in COLUMNS]
    return "\n".join(lines) + "\n"


def _rows(schema: dict[str, Any], prefix: str) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        nested = field.get("properties") is not None
        default = "*required*" if name in required else "" if nested else _default(field)
        yield f"| `{path}` | {_type(field)} | {default} | {field.get('description', '')} |"
        yield from _rows(field, f"{path}.")
        if "properties" in field.get("items", {}):
            yield from _rows(field["items"], f"{path}[].")


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    return "" if value is None or value == [] else f"`{value if not isinstance(value, bool) else str(value).lower()}`"


def _type(field: dict[str, Any]) -> str:
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in field["enum"])
    kind = field["type"]
    if kind == "array":
        return f"list of {field['items'].get('type', 'object')}"
    if kind in ("integer", "number") and "minimum" in field:
        limit = f" … {field['maximum']}" if "maximum" in field else " or more"
        return f"{kind}, {field['minimum']}{limit}"
    return str(kind)


def _messages(schema: dict[str, Any]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", []):
        yield rule["message"]
    for field in schema.get("properties", {}).values():
        yield from _messages(field)
