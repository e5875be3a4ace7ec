"""What INFER.REASONING.SAMPLE takes, and the defaults below a request. Source: behaviours I-01, I-02, I-09. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.errors import SettingsError
from memplane.runtime.config.layout import GENERATION
from memplane.runtime.errors import DefinitionError

ROLES = ("system", "user", "assistant", "tool")


class InvalidSample(Exception):  # noqa: N818 - becomes a result
    """The input breaks the contract; the message is public."""


def check_generation(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Generation defaults of a factory: `{temperature?, topP?, topK?, maxTokens?, stop?, seed?}`."""
    try:
        checked: Mapping[str, Any] = GENERATION.check("generation", settings or {})
    except SettingsError as error:
        raise DefinitionError(str(error)) from None
    return checked


def prepare(input: Any, *defaults: Mapping[str, Any]) -> dict[str, Any]:  # noqa: A002
    """A new request: the input with generation defaults filled in per field, the first of `defaults` ranking highest.

    Raises `InvalidSample`.
    """
    if not isinstance(input, Mapping):
        raise InvalidSample("input must be an object")
    _check_messages(input.get("messages"))
    model = input.get("model")
    if not isinstance(model, Mapping) or not _text(model.get("model")):
        raise InvalidSample("model.model must be a nonempty string")
    for name in ("provider", "endpoint"):
        if name in model and not _text(model[name]):
            raise InvalidSample(f"model.{name} must be a nonempty string")
    if "providerOptions" in model and not isinstance(model["providerOptions"], Mapping):
        raise InvalidSample("model.providerOptions must be an object")
    _check_actions(input.get("actions", ()))
    if "metadata" in input and not isinstance(input["metadata"], Mapping):
        raise InvalidSample("metadata must be an object")
    generation = _generation(input, defaults)
    return {**input, "generation": generation} if generation else dict(input)


def _generation(input: Mapping[str, Any], defaults: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:  # noqa: A002
    try:
        given = GENERATION.check("generation", input["generation"]) if "generation" in input else {}
    except SettingsError as error:
        raise InvalidSample(str(error)) from None
    merged: dict[str, Any] = {}
    for layer in (*reversed(defaults), given):
        merged.update(layer)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in merged.items()}


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidSample("messages must be a nonempty array")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            raise InvalidSample(f"messages[{index}].role must be one of {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str | list | tuple):
            raise InvalidSample(f"messages[{index}].content must be a string or an array")


def _check_actions(actions: Any) -> None:
    if not isinstance(actions, list | tuple):
        raise InvalidSample("actions must be an array")
    names: set[str] = set()
    for index, action in enumerate(actions):
        if not isinstance(action, Mapping) or not _text(action.get("name")) or action["name"] in names:
            raise InvalidSample(f"actions[{index}].name must be a nonempty, unique string")
        if not isinstance(action.get("inputSchema"), Mapping):
            raise InvalidSample(f"actions[{index}].inputSchema must be an object")
        names.add(action["name"])


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
