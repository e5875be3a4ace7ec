"""`create_interaction_worker`. Source: behaviours T-01, T-06."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memplane.contracts import CallOptions
from memplane.runtime import Handler, WorkerContext, WorkerDefinition, define_worker
from memplane.workers.interaction import mcp as mcp_calls
from memplane.workers.interaction.errors import InteractionError
from memplane.workers.interaction.mcp import McpClient
from memplane.workers.interaction.observe import observe
from memplane.workers.interaction.output import OutputSink, deliver
from memplane.workers.interaction.tools import Tool, ToolRegistry


def create_interaction_worker(
    *,
    tools: Iterable[Tool] | ToolRegistry | None = None,
    mcp: Mapping[str, McpClient] | None = None,
    output: OutputSink | None = None,
    concurrency: int | None = None,
) -> WorkerDefinition:
    """A worker of type INTERACTION: ACT.TOOL and OBSERVE; ACT.MCP and OUTPUT where configured.

    tools: a list, or a registry that stays live. Registering permits nothing: the runtime's sandbox decides.
    Results are plain documents, no NodeResult. Raises `InteractionError`.
    """
    registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools or ())

    async def act_tool(input: Any, ctx: WorkerContext) -> dict[str, Any]:  # noqa: A002
        if not isinstance(input, Mapping):
            raise InteractionError("input must be an object")
        return await registry.call(input.get("call"), ctx)

    async def act_observe(input: Any, ctx: WorkerContext) -> dict[str, Any]:  # noqa: A002
        return observe(input)

    nodes: dict[str, Handler] = {"INTERACTION.ACT.TOOL": act_tool, "INTERACTION.OBSERVE": act_observe}
    if mcp is not None:
        nodes["INTERACTION.ACT.MCP"] = _mcp_handler(dict(mcp))
    if output is not None:
        nodes["INTERACTION.OUTPUT"] = _output_handler(output)
    return define_worker(type="INTERACTION", nodes=nodes, concurrency=concurrency)


def _mcp_handler(clients: Mapping[str, McpClient]) -> Handler:
    async def act_mcp(input: Any, ctx: WorkerContext) -> dict[str, Any]:  # noqa: A002
        return await mcp_calls.execute(clients, input, ctx.sandbox, CallOptions(ctx.signal, ctx))

    return act_mcp


def _output_handler(sink: OutputSink) -> Handler:
    async def act_output(input: Any, ctx: WorkerContext) -> Mapping[str, Any]:  # noqa: A002
        return await deliver(sink, input, CallOptions(ctx.signal, ctx))

    return act_output
