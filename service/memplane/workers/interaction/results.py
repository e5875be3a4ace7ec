"""What a tool may bring back, and which error texts may travel on. Source: behaviours T-04, T-05. Pure.

An error text reaches models, logs and users: it must not carry a credential, a place in the file system or a stack.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memplane.runtime.canonical import NotJson, snapshot
from memplane.workers.interaction.errors import InteractionError

STATUSES = ("success", "failed", "cancelled", "timeout", "unknown")
RESULT_FIELDS = ("content", "structuredContent", "references", "metadata")

_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LONGEST_MESSAGE = 512
_UNSAFE = (
    re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]"),  # control characters and line breaks
    re.compile(r"\bbearer\s", re.IGNORECASE),
    re.compile(r"\bsk-\w", re.IGNORECASE),
    re.compile(r"(?<![\w:/.~-])~?/[\w.@~+-]+"),  # /absolute/path, but not and/or, 3/4 or https://host/path
    re.compile(r"\bfile:", re.IGNORECASE),
    re.compile(r"\b[A-Za-z]:[\\/](?!/)|\\\\\w"),  # C:\path, \\host\share
    re.compile(r"\bat \S+ ?\(|\bat \S+\.\w+:\d+|Traceback|File \"|, line \d+", re.IGNORECASE),  # a stack frame
)


def check_result(result: Any) -> dict[str, Any]:
    """A tool's result with its known fields: `status`, one of content, structuredContent, references; `error`.

    Raises `InteractionError`.
    """
    if not isinstance(result, Mapping) or result.get("status") not in STATUSES:
        raise InteractionError(f"Tool status must be one of {', '.join(STATUSES)}")
    checked: dict[str, Any] = {"status": result["status"]}
    for name in RESULT_FIELDS:
        if name in result:
            checked[name] = _json(name, result[name])
    if "references" in checked:
        _check_references(checked["references"])
    if "metadata" in checked and not isinstance(checked["metadata"], dict):
        raise InteractionError("Tool metadata must be an object")
    if "error" in result:
        checked["error"] = check_error(result["error"])
    if result["status"] == "success":
        if not any(name in checked for name in ("content", "structuredContent", "references")):
            raise InteractionError("A successful tool result needs content, structuredContent or references")
    elif "error" not in checked:
        raise InteractionError(f"A {result['status']} tool result needs an error")
    return checked


def check_error(error: Any) -> dict[str, Any]:
    """`{code, message, retryable?}` of an error; all else is dropped. Raises `InteractionError` on an unsafe one."""
    if not isinstance(error, Mapping):
        raise InteractionError("Interaction error must be an object")
    code, message = error.get("code"), error.get("message")
    if not isinstance(code, str) or not _CODE.fullmatch(code):
        raise InteractionError("Interaction error code must be 1 to 64 letters, digits, dots, dashes or underscores")
    if not isinstance(message, str) or not is_safe(message):
        raise InteractionError("Unsafe interaction error message")
    checked: dict[str, Any] = {"code": code, "message": message}
    if "retryable" in error:
        if not isinstance(error["retryable"], bool):
            raise InteractionError("Interaction error retryable must be a boolean")
        checked["retryable"] = error["retryable"]
    return checked


def is_safe(message: str) -> bool:
    """Whether a text may be shown: nonblank, ≤ 512 characters, no control character, credential, path or stack."""
    if not message.strip() or len(message) > _LONGEST_MESSAGE:
        return False
    return not any(pattern.search(message) for pattern in _UNSAFE)


def _json(name: str, value: Any) -> Any:
    try:
        return snapshot(value)
    except NotJson:
        raise InteractionError(f"Tool {name} must be plain JSON") from None


def _check_references(references: Any) -> None:
    if not isinstance(references, list) or not references:
        raise InteractionError("Tool references must be a nonempty array")
    for reference in references:
        if (
            not isinstance(reference, Mapping)
            or not isinstance(reference.get("uri"), str)
            or not reference["uri"].strip()
        ):
            raise InteractionError("A tool reference needs a nonblank uri")
