"""INTERACTION.ACT.MCP: tools of application-owned MCP clients, by server name. Source: behaviours T-06.

    {operation: "discover", server?}      → {operation: "discover", capabilities: [{server, name, inputSchema, …}]}
    {operation: "invoke", server, call}   → {operation: "invoke", result}    result.source is `server:tool`

Every server needs the sandbox's `mcp` permission; a refused one is an error, not left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from memplane.contracts import CallOptions
from memplane.runtime.sandbox import Sandbox
from memplane.workers.interaction.errors import InteractionError
from memplane.workers.interaction.results import check_result

MAX_PAGES = 100
MAX_CAPABILITIES = 1000


class McpClient(Protocol):
    """A connected client; the application closes it.

    `list_tools` returns `{tools: [{name, inputSchema, description?}], nextCursor?}`, `call_tool` returns
    `{content? | structuredContent? | references?, isError?, error?}`.
    """

    async def list_tools(self, cursor: str | None, options: CallOptions) -> Mapping[str, Any]: ...
    async def call_tool(self, name: str, arguments: Mapping[str, Any], options: CallOptions) -> Mapping[str, Any]: ...


async def execute(
    clients: Mapping[str, McpClient],
    input: Any,  # noqa: A002
    sandbox: Sandbox,
    options: CallOptions,
) -> dict[str, Any]:
    """Discover or invoke. Raises `InteractionError`, `PermissionDenied`, and what a client raises."""
    operation = input.get("operation") if isinstance(input, Mapping) else None
    if operation == "discover":
        names = [input["server"]] if "server" in input else sorted(clients)
        found: list[dict[str, Any]] = []
        for name in names:
            found += await _discover(name, _client(clients, name, sandbox), options)
        if len(found) > MAX_CAPABILITIES:
            raise InteractionError(f"More than {MAX_CAPABILITIES} MCP capabilities")
        return {"operation": "discover", "capabilities": found}
    if operation == "invoke":
        return {"operation": "invoke", "result": await _invoke(clients, input, sandbox, options)}
    raise InteractionError("operation must be discover or invoke")


async def _discover(server: str, client: McpClient, options: CallOptions) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    seen: set[str | None] = set()
    cursor: str | None = None
    while cursor not in seen and len(seen) < MAX_PAGES and len(found) <= MAX_CAPABILITIES:
        seen.add(cursor)
        page = await client.list_tools(cursor, options)
        for tool in page["tools"]:
            if not isinstance(tool.get("name"), str) or not isinstance(tool.get("inputSchema"), Mapping):
                raise InteractionError("MCP server described an invalid tool")
            kept = {key: tool[key] for key in ("name", "inputSchema", "outputSchema", "description") if key in tool}
            found.append({"server": server, **kept})
        cursor = page.get("nextCursor")
        if cursor is None:
            return found
    raise InteractionError("MCP discovery does not come to an end")


async def _invoke(
    clients: Mapping[str, McpClient],
    input: Mapping[str, Any],  # noqa: A002
    sandbox: Sandbox,
    options: CallOptions,
) -> dict[str, Any]:
    call = input.get("call")
    if not isinstance(call, Mapping) or not isinstance(call.get("id"), str) or not call["id"].strip():
        raise InteractionError("call.id must be a nonblank string")
    if not isinstance(call.get("name"), str) or not isinstance(call.get("arguments"), Mapping):
        raise InteractionError("call needs a name and arguments")
    client = _client(clients, input.get("server"), sandbox)
    answer = await client.call_tool(call["name"], call["arguments"], options)
    failed = answer.get("isError") is True or "error" in answer
    result = {key: value for key, value in answer.items() if key != "isError"}
    if failed and "error" not in result:
        result["error"] = {"code": "MCP_TOOL_FAILED", "message": "MCP tool reported a failure"}
    checked = check_result({**result, "status": "failed" if failed else "success"})
    return {"callId": call["id"], "source": f"{input['server']}:{call['name']}", **checked}


def _client(clients: Mapping[str, McpClient], server: Any, sandbox: Sandbox) -> McpClient:
    if not isinstance(server, str) or not server:
        raise InteractionError("server must be a nonempty string")
    sandbox.check("mcp", server)
    if server not in clients:
        raise InteractionError(f"Unknown MCP server: {server}")
    return clients[server]
