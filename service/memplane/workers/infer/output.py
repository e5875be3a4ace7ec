"""What a model provider may answer. Source: behaviours I-01, I-04, I-05. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.errors import PluginError

FINISH_REASONS = ("stop", "length", "action_request", "cancelled", "error")


def check_output(output: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """`{message, finishReason, usage?, actionRequests?}` with known fields. Raises `PluginError`.

    Where an action runs comes from its declaration in the request alone, never from the model.
    """
    if not isinstance(output, Mapping):
        raise _invalid()
    message, reason = output.get("message"), output.get("finishReason")
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        raise _invalid()
    if not isinstance(message.get("content"), str | list | tuple) or reason not in FINISH_REASONS:
        raise _invalid()
    checked: dict[str, Any] = {"message": message, "finishReason": reason}
    if "usage" in output:
        checked["usage"] = _check_usage(output["usage"])
    actions = output.get("actionRequests", ())
    if not isinstance(actions, list | tuple) or (reason == "action_request") != bool(actions):
        raise _invalid()
    if actions:
        checked["actionRequests"] = _check_actions(actions, request)
    return checked


def _check_usage(usage: Any) -> Mapping[str, int]:
    if not isinstance(usage, Mapping):
        raise _invalid()
    for value in usage.values():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _invalid()
    return usage


def _check_actions(actions: list[Any] | tuple[Any, ...], request: Mapping[str, Any]) -> list[dict[str, Any]]:
    declared = {action["name"]: action for action in request.get("actions", ())}
    seen: set[str] = set()
    checked: list[dict[str, Any]] = []
    for action in actions:
        if not isinstance(action, Mapping) or not isinstance(action.get("arguments"), Mapping):
            raise _invalid()
        action_id, name = action.get("id"), action.get("name")
        if not isinstance(action_id, str) or not action_id or action_id in seen or not isinstance(name, str):
            raise _invalid()
        if name not in declared:
            raise PluginError("UNDECLARED_ACTION", "Model requested an action that was not declared")
        seen.add(action_id)
        kept = {"id": action_id, "name": name, "arguments": action["arguments"]}
        if "targetNode" in declared[name]:
            kept["targetNode"] = declared[name]["targetNode"]
        checked.append(kept)
    return checked


def _invalid() -> PluginError:
    return PluginError("INVALID_MODEL_OUTPUT", "Model provider returned an invalid result")
