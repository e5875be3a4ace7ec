"""What the parts of the resource have in common: the base model, CEL rules and constrained types."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$", max_length=32)]
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
PluginName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class Rule(BaseModel):
    """A CEL validation of the API server; the message says what to do."""

    rule: str
    message: str


class Model(BaseModel):
    """A part of the resource: camelCase on the wire, frozen.

    Unknown fields are the API server's to refuse. Here they are left out: while an upgrade rolls out, or after a
    rollback, the definition may be newer than the operator, and its backends must be looked after all the same.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)
    cel_rules: tuple[Rule, ...] = Field(default=(), exclude=True, repr=False)


def rules(*pairs: tuple[str, str]) -> Any:
    """A `cel_rules` default from (rule, message) pairs."""
    return Field(default=tuple(Rule(rule=rule, message=message) for rule, message in pairs), exclude=True, repr=False)
