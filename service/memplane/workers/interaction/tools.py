"""Tools and their registry: permission first, then existence, validation, execution, and a check of what comes back.

Source: behaviours T-01 … T-03, T-06.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from memplane.runtime.canonical import NotJson, freeze, snapshot
from memplane.runtime.context import WorkerContext
from memplane.workers.interaction.errors import InteractionError
from memplane.workers.interaction.results import check_result

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    """One thing a model may ask for.

    name: 1 to 64 letters, digits, `_`, `-`. execute: `async execute(arguments, ctx)` returns
    `{status, content? | structuredContent? | references?, error?, metadata?}`. validate: raises on wrong arguments.
    input_schema: JSON schema for models (any object by default); not enforced. effects, requires_approval:
    descriptions alone, they grant and refuse nothing.
    """

    name: str
    execute: Callable[[Mapping[str, Any], WorkerContext], Awaitable[Mapping[str, Any]]]
    validate: Callable[[Mapping[str, Any]], object] | None = None
    input_schema: Mapping[str, Any] | None = None
    effects: tuple[str, ...] = ()
    requires_approval: bool = False
    description: str | None = None

    def describe(self) -> dict[str, Any]:
        """What a caller may know: `name, inputSchema, effects, requiresApproval, description?`."""
        described: dict[str, Any] = {
            "name": self.name,
            "inputSchema": freeze(snapshot(self.input_schema or {"type": "object"})),
            "effects": tuple(self.effects),
            "requiresApproval": self.requires_approval,
        }
        return described if self.description is None else {**described, "description": self.description}


class ToolRegistry:
    """Tools by name; a worker that was given one sees later changes."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool) -> Callable[[], bool]:
        """Add a tool. The returned function takes it out: True once, then False. Raises `InteractionError`."""
        if not isinstance(tool, Tool) or not isinstance(tool.name, str) or not _NAME.fullmatch(tool.name):
            raise InteractionError(f"Invalid or duplicate tool: {getattr(tool, 'name', tool)}")
        if tool.name in self._tools:
            raise InteractionError(f"Invalid or duplicate tool: {tool.name}")
        self._tools[tool.name] = tool

        def unregister() -> bool:
            if self._tools.get(tool.name) is not tool:
                return False
            del self._tools[tool.name]
            return True

        return unregister

    def unregister(self, name: str) -> bool:
        """Take a tool out by name: True when it was there."""
        return self._tools.pop(name, None) is not None

    def list(self, ctx: WorkerContext) -> list[dict[str, Any]]:
        """The tools that the sandbox permits, described."""
        return [tool.describe() for tool in self._tools.values() if ctx.sandbox.allows("tools", tool.name)]

    async def call(self, call: Any, ctx: WorkerContext) -> dict[str, Any]:
        """`{callId, source, status, …}` of a call `{id, name, arguments}`.

        Permission is asked before existence, so that a refused name does not tell what exists. Raises
        `InteractionError`, `PermissionDenied`, and whatever `validate` or `execute` raise.
        """
        if not isinstance(call, Mapping) or not isinstance(call.get("id"), str) or not call["id"].strip():
            raise InteractionError("call.id must be a nonblank string")
        name = call.get("name")
        if not isinstance(name, str):
            raise InteractionError("call.name must be a string")
        ctx.sandbox.check_tool(name)
        tool = self._tools.get(name)
        if tool is None:
            raise InteractionError(f"Unknown tool: {name}")
        arguments = _arguments(call)
        if tool.validate is not None:
            tool.validate(arguments)
        if ctx.signal is not None:
            ctx.signal.raise_if_aborted()
        result = check_result(await tool.execute(arguments, ctx))
        return {"callId": call["id"], "source": name, **result}


def _arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(call.get("arguments"), Mapping):
        raise InteractionError("call.arguments must be an object")
    try:
        arguments: Mapping[str, Any] = snapshot(call["arguments"])
    except NotJson:
        raise InteractionError("call.arguments must be plain JSON") from None
    return arguments
