"""INTERACTION.OBSERVE: a result as a message for a model; pure and deterministic. Source: behaviours T-07."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.runtime.canonical import canonical_json
from memplane.workers.interaction.errors import InteractionError
from memplane.workers.interaction.results import check_result


def observe(input: Any) -> dict[str, Any]:  # noqa: A002
    """`{callId, source, status, message, references?}` of `{result}`; its message has role `tool`, name = source.

    Its content is the text of content, structured content and failure, one per line. Raises `InteractionError`.
    """
    result = input.get("result") if isinstance(input, Mapping) else None
    if not isinstance(result, Mapping):
        raise InteractionError("result must be an object")
    for name in ("callId", "source"):
        if not isinstance(result.get(name), str) or not result[name].strip():
            raise InteractionError(f"result.{name} must be a nonblank string")
    checked = check_result(result)
    metadata = {"callId": result["callId"], "status": checked["status"]}
    message = {"role": "tool", "name": result["source"], "content": _text(checked), "metadata": metadata}
    observation = {**metadata, "source": result["source"], "message": message}
    if "references" in checked:
        observation["references"] = checked["references"]
    return observation


def _text(result: Mapping[str, Any]) -> str:
    lines: list[str] = []
    if "error" in result:
        lines.append(f"{result['status']}: {result['error']['code']}: {result['error']['message']}")
    for name in ("content", "structuredContent"):
        if name in result:
            value = result[name]
            lines.append(value if isinstance(value, str) else canonical_json(value))
    if not lines:
        lines.extend(str(reference["uri"]) for reference in result.get("references", ()))
    return "\n".join(lines)
