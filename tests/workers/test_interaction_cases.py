"""INTERACTION: T-01 … T-07."""

# ruff: noqa: E501 - a case is easier to read on one line
from __future__ import annotations

import pytest

from memplane.runtime import PermissionDenied, create_runtime
from memplane.workers import InteractionError, Tool, ToolRegistry, create_interaction_worker, observe
from memplane.workers.interaction.results import check_error, check_result, is_safe


def tool(name="search", result=None, **options):
    async def execute(arguments, ctx):
        return {"status": "success", "content": arguments} if result is None else result

    return Tool(name=name, execute=execute, **options)


def runtime_of(*tools, allowed=("search",), **options):
    return create_runtime(
        sandbox={"tools": list(allowed), "mcp": ["files"]}, workers=[create_interaction_worker(tools=tools, **options)]
    )


def call(name="search", arguments=None, id="c1"):
    return {"call": {"id": id, "name": name, "arguments": {} if arguments is None else arguments}}


async def act(runtime, *arguments, **options):
    return await runtime.invoke("INTERACTION.ACT.TOOL", call(*arguments, **options))


async def test_t01_a_call_gives_a_plain_result():
    result = await act(runtime_of(tool()), "search", {"q": 1})
    assert result == {"callId": "c1", "source": "search", "status": "success", "content": {"q": 1}}
    failed = {"status": "failed", "error": {"code": "NOT_FOUND", "message": "Nothing there"}}
    assert await act(runtime_of(tool(result=failed))) == {"callId": "c1", "source": "search", **failed}


async def test_t02_id_permission_existence_validation_execution_result_in_this_order():
    order = []

    def validate(arguments):
        order.append("validate")
        if "bad" in arguments:
            raise TypeError("bad arguments")

    async def execute(arguments, ctx):
        order.append("execute")
        return {"status": "odd"} if "odd" in arguments else {"status": "success", "content": 1}

    runtime = runtime_of(Tool(name="search", execute=execute, validate=validate), allowed=["search", "ghost"])
    for blank in ("", "  ", None, 3):
        with pytest.raises(InteractionError, match=r"call\.id must be a nonblank string"):
            await runtime.invoke("INTERACTION.ACT.TOOL", {"call": {"id": blank, "name": "denied", "arguments": {}}})
    with pytest.raises(PermissionDenied, match="Permission denied: tools:denied"):
        await act(runtime, "denied")  # whether it exists is not told
    with pytest.raises(InteractionError, match=r"^Unknown tool: ghost$"):
        await act(runtime, "ghost")
    assert order == []
    with pytest.raises(TypeError, match="bad arguments"):
        await act(runtime, "search", {"bad": 1})
    assert order == ["validate"]
    with pytest.raises(InteractionError, match="status must be one of"):
        await act(runtime, "search", {"odd": 1})
    assert order == ["validate", "validate", "execute"]
    for arguments in ([], "x", {"f": object()}):
        with pytest.raises(InteractionError, match="arguments"):
            await runtime.invoke(
                "INTERACTION.ACT.TOOL", {"call": {"id": "1", "name": "search", "arguments": arguments}}
            )
    for bad in (None, [], {}, {"call": 1}):
        with pytest.raises(InteractionError):
            await runtime.invoke("INTERACTION.ACT.TOOL", bad)


async def test_t02_what_a_tool_raises_is_raised():
    async def execute(arguments, ctx):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await act(runtime_of(Tool(name="search", execute=execute)))


@pytest.mark.parametrize("name", ["invalid.name", "", "a b", "x" * 65, "é", None])
def test_t03_names_are_letters_digits_underscores_and_dashes(name):
    with pytest.raises(InteractionError, match="Invalid or duplicate tool: "):
        ToolRegistry([tool(name)])


async def test_t03_the_registry_refuses_duplicates_and_lists_what_is_permitted():
    registry = ToolRegistry(
        [tool("search", effects=("read",), requires_approval=True, description="d"), tool("hidden")]
    )
    with pytest.raises(InteractionError, match=r"^Invalid or duplicate tool: search$"):
        registry.register(tool("search"))
    unregister = registry.register(tool("x" * 64))
    assert unregister() is True
    assert unregister() is False
    seen = {}

    async def execute(arguments, ctx):
        seen["list"] = registry.list(ctx)
        return {"status": "success", "content": 1}

    registry.register(Tool(name="probe", execute=execute))
    runtime = create_runtime(
        sandbox={"tools": ["search", "probe"]}, workers=[create_interaction_worker(tools=registry)]
    )
    await act(runtime, "probe")
    assert [entry["name"] for entry in seen["list"]] == ["search", "probe"]
    assert seen["list"][0] == {
        "name": "search",
        "inputSchema": {"type": "object"},
        "effects": ("read",),
        "requiresApproval": True,
        "description": "d",
    }
    # Descriptions grant and refuse nothing.
    assert (await act(runtime, "search"))["status"] == "success"


async def test_t03_a_stale_unregister_leaves_a_successor_alone():
    registry = ToolRegistry()
    stale = registry.register(tool("a"))
    assert registry.unregister("a") is True
    assert registry.unregister("a") is False
    registry.register(tool("a"))
    assert stale() is False


@pytest.mark.parametrize(
    "result",
    [
        None, [], {}, {"status": "done"}, {"status": "success"}, {"status": "success", "metadata": {}},
        {"status": "failed"}, {"status": "unknown", "content": 1}, {"status": "success", "content": object()},
        {"status": "success", "content": float("inf")}, {"status": "success", "structuredContent": {1: 2}},
        {"status": "success", "content": 1, "metadata": []}, {"status": "success", "references": []},
        {"status": "success", "references": [{"uri": " "}]}, {"status": "success", "references": [{}]},
        {"status": "success", "references": {"uri": "x"}},
    ],
)  # fmt: skip
def test_t04_results_that_say_too_little_or_the_wrong_thing(result):
    with pytest.raises(InteractionError):
        check_result(result)


@pytest.mark.parametrize("status", ["failed", "cancelled", "timeout", "unknown"])
def test_t04_other_statuses_need_an_error_and_may_carry_content(status):
    error = {"code": "X", "message": "y"}
    assert check_result({"status": status, "error": error, "content": None, "extra": 1}) == {
        "status": status,
        "error": error,
        "content": None,
    }


@pytest.mark.parametrize(
    "message",
    [
        "", "  ", "x" * 513, "two\nlines", "tab\there", "null\x00", "Authorization: Bearer abc", "bearer abc", "key sk-live123",
        "cannot read /etc/passwd", "/root", "failed at '/home/me/file'", "C:\\Users\\me", "open C:/temp", "\\\\host\\share",
        "file:///etc/passwd", "at Object.run (main.js:1)", "error at main.py:12", "Traceback (most recent call last)",
        'File "x.py", line 3', "~/secrets", 3, None,
    ],
)  # fmt: skip
def test_t05_unsafe_messages_are_refused_also_on_a_success(message):
    error = {"code": "X", "message": message}
    for result in ({"status": "failed", "error": error}, {"status": "success", "content": 1, "error": error}):
        with pytest.raises(InteractionError, match=r"^Unsafe interaction error message$"):
            check_result(result)


@pytest.mark.parametrize(
    "message",
    [
        "Retry at 12:30",
        "x" * 512,
        "See https://example.com/help/page",
        "3/4 done",
        "and/or",
        "Risk-based check",
        "a - b",
    ],
)
def test_t05_plain_messages_pass(message):
    assert is_safe(message)


def test_t05_errors_are_reduced_to_code_message_and_retryable():
    error = {"code": "A.b_c-9", "message": "No", "retryable": True, "stack": "…", "token": "t"}
    assert check_error(error) == {"code": "A.b_c-9", "message": "No", "retryable": True}
    for bad in ({"code": "x" * 65, "message": "m"}, {"code": "a b", "message": "m"}, {"code": "", "message": "m"}, {"message": "m"}, "x",
                {"code": "X", "message": "m", "retryable": "yes"}):  # fmt: skip
        with pytest.raises(InteractionError):
            check_error(bad)


class Files:
    """An MCP client with two pages of tools."""

    def __init__(self):
        self.pages = {None: {"tools": [{"name": "read", "inputSchema": {}, "secret": 1}], "nextCursor": "2"},
                      "2": {"tools": [{"name": "write", "inputSchema": {}, "description": "d"}]}}  # fmt: skip
        self.answer = {"content": "text"}
        self.calls = []

    async def list_tools(self, cursor, options):
        return self.pages[cursor]

    async def call_tool(self, name, arguments, options):
        self.calls.append((name, arguments))
        return self.answer


class Sink:
    def __init__(self):
        self.wrong = False

    async def deliver(self, input, options):
        return {"deliveryId": "other" if self.wrong else input["deliveryId"], "status": "accepted"}


async def test_t06_what_is_exposed_depends_on_what_is_configured():
    def exposed(**options):
        return sorted(create_runtime(workers=[create_interaction_worker(**options)]).workers()[0]["capabilities"])

    assert exposed() == ["INTERACTION.ACT.TOOL", "INTERACTION.OBSERVE"]
    assert exposed(mcp={}, output=Sink()) == [
        "INTERACTION.ACT.MCP",
        "INTERACTION.ACT.TOOL",
        "INTERACTION.OBSERVE",
        "INTERACTION.OUTPUT",
    ]


async def test_t06_a_supplied_registry_stays_live():
    registry = ToolRegistry()
    runtime = create_runtime(sandbox={"tools": ["late"]}, workers=[create_interaction_worker(tools=registry)])
    with pytest.raises(InteractionError, match="Unknown tool: late"):
        await act(runtime, "late")
    unregister = registry.register(tool("late"))
    assert (await act(runtime, "late"))["status"] == "success"
    unregister()
    with pytest.raises(InteractionError, match="Unknown tool: late"):
        await act(runtime, "late")


async def test_t06_mcp_discovers_and_invokes_permitted_servers():
    files = Files()
    runtime = runtime_of(mcp={"files": files})
    found = await runtime.invoke("INTERACTION.ACT.MCP", {"operation": "discover"})
    assert found["capabilities"] == [
        {"server": "files", "name": "read", "inputSchema": {}},
        {"server": "files", "name": "write", "inputSchema": {}, "description": "d"},
    ]
    invoke = {"operation": "invoke", "server": "files", "call": {"id": "c", "name": "read", "arguments": {"p": 1}}}
    answer = await runtime.invoke("INTERACTION.ACT.MCP", invoke)
    assert answer == {
        "operation": "invoke",
        "result": {"callId": "c", "source": "files:read", "status": "success", "content": "text"},
    }
    files.answer = {"content": "no", "isError": True}
    failed = (await runtime.invoke("INTERACTION.ACT.MCP", invoke))["result"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "MCP_TOOL_FAILED")
    files.pages["2"]["nextCursor"] = "2"
    with pytest.raises(InteractionError, match="does not come to an end"):
        await runtime.invoke("INTERACTION.ACT.MCP", {"operation": "discover", "server": "files"})
    with pytest.raises(PermissionDenied, match="mcp:other"):
        await runtime.invoke("INTERACTION.ACT.MCP", {**invoke, "server": "other"})
    for bad in ({}, {"operation": "x"}, {"operation": "invoke", "server": "files"}, None):
        with pytest.raises(InteractionError):
            await runtime.invoke("INTERACTION.ACT.MCP", bad)


async def test_t06_output_is_receipted_for_the_same_delivery():
    sink = Sink()
    runtime = runtime_of(output=sink)
    message = {"deliveryId": "d1", "message": {"role": "assistant", "content": "done"}}
    assert (await runtime.invoke("INTERACTION.OUTPUT", message))["status"] == "accepted"
    for bad in ({}, {"deliveryId": " ", "message": {}}, {"deliveryId": "d", "message": "text"}):
        with pytest.raises(InteractionError):
            await runtime.invoke("INTERACTION.OUTPUT", bad)
    sink.wrong = True
    with pytest.raises(InteractionError, match="another delivery"):
        await runtime.invoke("INTERACTION.OUTPUT", message)


async def test_t07_observe_makes_a_tool_message():
    result = {"callId": "c1", "source": "search", "status": "success", "content": "found", "structuredContent": {"b": 1, "a": 2},
              "references": [{"uri": "urn:1"}]}  # fmt: skip
    observation = observe({"result": result})
    assert observation == {
        "callId": "c1",
        "source": "search",
        "status": "success",
        "message": {
            "role": "tool",
            "name": "search",
            "content": 'found\n{"a":2,"b":1}',
            "metadata": {"callId": "c1", "status": "success"},
        },
        "references": [{"uri": "urn:1"}],
    }
    assert await runtime_of().invoke("INTERACTION.OBSERVE", {"result": result}) == observation
    failed = {
        "callId": "c1",
        "source": "s",
        "status": "timeout",
        "error": {"code": "LATE", "message": "Too late", "stack": 1},
    }
    assert observe({"result": failed})["message"]["content"] == "timeout: LATE: Too late"
    only = {"callId": "c1", "source": "s", "status": "success", "references": [{"uri": "urn:1"}, {"uri": "urn:2"}]}
    assert observe({"result": only})["message"]["content"] == "urn:1\nurn:2"
    for bad in (None, {}, {"result": {"status": "success", "content": 1}}, {"result": {**failed, "callId": ""}}):
        with pytest.raises(InteractionError):
            observe(bad)
