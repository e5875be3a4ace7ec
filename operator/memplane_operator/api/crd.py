"""Generates the CustomResourceDefinition from the typed models.

`python -m memplane_operator.api.crd` prints it. A structural schema has no `$ref`, no `anyOf` with null and no default
beside required, so the JSON schema of the models is rewritten: references inlined, nullable options turned into plain
optional fields, CEL rules attached as `x-kubernetes-validations`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, get_args

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from memplane_operator.api.model import Model, Rule
from memplane_operator.api.spec import MemoryBackendSpec
from memplane_operator.api.status import MemoryBackendStatus

GROUP = "memplane.dev"
VERSION = "v1alpha1"
KIND = "MemoryBackend"
PLURAL = "memorybackends"

COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    ("Ready", "string", "Whether the backend serves.", ".status.conditions[?(@.type=='Ready')].status"),
    ("Store", "string", "Store plugin.", ".spec.store.plugin"),
    ("Backlog", "integer", "Events that wait.", ".status.summary.backlog"),
    ("Lag", "integer", "Age of the oldest event that waits, in seconds.", ".status.summary.lagSeconds"),
    ("Dead", "integer", "Events that exhausted their attempts.", ".status.summary.dead"),
    ("Drift", "integer", "Differences found by the last full comparisons.", ".status.summary.drift"),
    ("Age", "date", "Time since creation.", ".metadata.creationTimestamp"),
)

NAME_RULES = (
    Rule(
        rule="self.metadata.name.size() <= 32",
        message="the name must have at most 32 characters: the names of Services and CronJobs are made from it",
    ),
    Rule(
        rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message="the name must begin with a letter and have no dots: a Service and labels carry it",
    ),
)

_KEPT = (
    "type", "format", "pattern", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
)  # fmt: skip


def schema_of(model: type[Model]) -> dict[str, Any]:
    """The structural schema of a model: an object with described properties, defaults and CEL rules."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, info in model.model_fields.items():
        if name == "cel_rules":
            continue
        wire = info.alias or name
        properties[wire] = _property(info, model, name)
        if info.is_required():
            required.append(wire)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    celrules = model.model_fields["cel_rules"].default
    if celrules:
        schema["x-kubernetes-validations"] = _validations(celrules)
    return schema


def _validations(celrules: Iterable[Rule]) -> list[dict[str, str]]:
    return [{"rule": rule.rule, "message": rule.message} for rule in celrules]


def _property(info: FieldInfo, model: type[Model], name: str) -> dict[str, Any]:
    nested = _model_in(info.annotation)
    raw = model.model_json_schema(by_alias=True)["properties"][info.alias or name]
    if nested is not None:
        schema = schema_of(nested)
        if _is_list(info.annotation):
            schema = {"type": "array", "items": schema, **{k: raw[k] for k in _KEPT if k in raw and k != "type"}}
    else:
        schema = _plain(raw)
    schema = {"description": info.description or "", **schema}
    if not info.is_required():
        default = info.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            if not any(field.is_required() for field in type(default).model_fields.values()):
                # Written out: the API server checks CEL rules against this value before it fills in nested defaults.
                schema["default"] = default.model_dump(mode="json", by_alias=True, exclude_none=True)
        elif default is not None:
            schema["default"] = list(default) if isinstance(default, tuple) else default
    return schema


def _model_in(annotation: Any) -> type[Model] | None:
    """The nested model of `Model`, `Model | None` or `list[Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    for argument in get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def _is_list(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is list


def _plain(raw: dict[str, Any]) -> dict[str, Any]:
    """A leaf: scalars, lists of scalars, maps of scalars, free documents."""
    options = [option for option in raw.get("anyOf", [raw]) if option.get("type") != "null"]
    source = options[0]
    schema = {key: source[key] for key in _KEPT if key in source}
    if "const" in source:
        schema.update(type="string", enum=[source["const"]])
    if source.get("type") == "array":
        schema["items"] = _plain(source["items"])
    if source.get("type") == "object":
        values = source.get("additionalProperties", True)
        if values is True:
            schema["x-kubernetes-preserve-unknown-fields"] = True
        else:
            schema["additionalProperties"] = _plain(values)
    if schema.get("type") == "integer" and "format" not in schema:
        schema["format"] = "int64" if schema.get("maximum", 2**40) > 2**31 else "int32"
    return schema


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    spec = {"description": "The desired state of the memory backend.", **schema_of(MemoryBackendSpec)}
    status = {"description": "The observed state of the memory backend.", **schema_of(MemoryBackendStatus)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": "memorybackend",
                "shortNames": ["mb"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "description": text, "jsonPath": path}
                        for name, kind, text, path in COLUMNS
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "description": (
                                "A memory backend: a memory service on one PostgreSQL truth, with projections to a "
                                "vector index and a graph that converge to it."
                            ),
                            "type": "object",
                            "required": ["spec"],
                            "x-kubernetes-validations": _validations(NAME_RULES),
                            "properties": {
                                "apiVersion": {"type": "string", "description": "Version of this representation."},
                                "kind": {"type": "string", "description": "Always MemoryBackend."},
                                "metadata": {"type": "object"},
                                "spec": spec,
                                "status": status,
                            },
                        }
                    },
                }
            ],
        },
    }


def main() -> None:
    """Print the CRD as YAML."""
    sys.stdout.write(yaml.safe_dump(crd(), sort_keys=False, width=120, allow_unicode=True))


if __name__ == "__main__":
    main()
