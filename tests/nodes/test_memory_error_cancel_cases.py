"""Cases M-45 to M-48, M-50 to M-52 and M-54 to M-60: errors, defaults, cancellation."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from tests.nodes.fakes import SearchingStore
from tests.nodes.test_memory_get_query_cases import BACKEND_OUTPUT, fault, invalid, row

from memplane.contracts import CallOptions
from memplane.errors import PluginError, RetrievalError, SettingsError
from memplane.nodes import InvalidDefaults, create_memory
from memplane.signal import Signal, race

CALLS: list[tuple[str, Any]] = [
    ("get", {"ids": ["1"]}),
    ("query", {}),
    ("search", {"query": "x"}),
    ("write", {"memories": [{"content": 1}]}),
    ("update", {"memories": [{"id": "1", "content": 1}]}),
    ("delete", {"ids": ["1"]}),
]
GOOD: dict[str, Any] = {
    "get": [row("1")],
    "query": {"items": []},
    "search": [],
    "write": [row("1")],
    "update": [row("1")],
    "delete": {"deleted": []},
}


def always(answer: Any) -> SearchingStore:
    return SearchingStore(**{method: answer for method, _ in CALLS})


def cancelled(result: Any) -> bool:
    wire = result.as_wire()
    return bool(
        wire["status"] == "cancelled"
        and wire["error"] == {"code": "MEMORY_CANCELLED", "message": "Memory operation cancelled"}
        and "output" not in wire
    )


def aborted() -> Signal:
    signal = Signal()
    signal.abort()
    return signal


# --- errors


@pytest.mark.parametrize(("method", "given"), CALLS)
async def test_m45_a_generic_exception_shows_nothing(method: str, given: Any) -> None:
    result = await getattr(create_memory(store=always(RuntimeError("password=secret"))), method)(given)
    assert fault(result) == ("MEMORY_BACKEND_ERROR", "Memory backend operation failed")
    assert "secret" not in json.dumps(result.as_wire())


class Lookalike(Exception):
    code = "CONFLICT"
    message = safe_message = "secret"


@pytest.mark.parametrize("error", [Lookalike(), RetrievalError("RETRIEVAL_TIMEOUT", "secret"), SettingsError("secret")])
async def test_m46_only_the_plugin_error_class_passes(error: Exception) -> None:
    result = await create_memory(store=always(error)).search({"query": "x"})
    assert fault(result) == ("MEMORY_BACKEND_ERROR", "Memory backend operation failed")


async def test_m47_code_and_message_pass_verbatim() -> None:
    store = always(PluginError("INVALID_INPUT", "from the plugin"))
    result = await create_memory(store=store).query({})
    assert fault(result) == ("INVALID_INPUT", "from the plugin")
    assert len(store.calls) == 1


@pytest.mark.parametrize(("method", "given"), CALLS)
async def test_m48_none_is_an_invalid_output_and_nothing_is_retried(method: str, given: Any) -> None:
    store = always(None)
    assert fault(await getattr(create_memory(store=store), method)(given)) == BACKEND_OUTPUT
    assert len(store.calls) == 1


# --- defaults


@pytest.mark.parametrize("value", [1.5, 0, 10001, -1, "5", None, True, float("nan")])
@pytest.mark.parametrize("key", ["queryLimit", "searchLimit", "unknown"])
def test_m50_factory_defaults_are_checked_at_construction(value: Any, key: str) -> None:
    with pytest.raises(InvalidDefaults, match=rf"^{key} must be an integer in 1\.\.10000$"):
        create_memory(store=SearchingStore(), defaults={"queryLimit": 5, key: value})


def test_m50_defaults_must_be_an_object_and_an_unknown_key_in_range_is_ignored() -> None:
    with pytest.raises(InvalidDefaults, match="defaults must be an object"):
        create_memory(store=SearchingStore(), defaults=[1])  # type: ignore[arg-type]
    create_memory(store=SearchingStore(), defaults={"other": 5})


async def test_m50_defaults_are_copied() -> None:
    defaults = {"queryLimit": 4}
    store = always(None)
    memory = create_memory(store=store, defaults=defaults)
    defaults["queryLimit"] = 99
    await memory.query({})
    assert store.inputs("query") == [{"limit": 4}]


async def test_m51_a_default_is_no_cap() -> None:
    store = always(None)
    memory = create_memory(store=store, defaults={"queryLimit": 4, "searchLimit": 2})
    await memory.query({"limit": 10_000})
    await memory.search({"query": "x", "limit": 10_000})
    assert [seen["limit"] for _, seen, _ in store.calls] == [10_000, 10_000]


async def test_m52_defaults_of_a_call_rank_below_the_factorys_and_above_the_built_in() -> None:
    store = always(None)
    memory = create_memory(store=store, defaults={"queryLimit": 4})
    low = {"queryLimit": 7, "searchLimit": 8}
    await memory.execute("MEMORY.QUERY", {}, defaults=low)
    await memory.execute("MEMORY.SEARCH", {"query": "x"}, defaults=low)
    await memory.execute("MEMORY.SEARCH", {"query": "x"})
    await memory.execute("MEMORY.SEARCH", {"query": "x", "limit": 3}, defaults=low)
    assert [seen["limit"] for _, seen, _ in store.calls] == [4, 8, 10, 3]


async def test_m52_bad_defaults_of_a_call_are_invalid_input() -> None:
    result = await create_memory(store=always(None)).execute("MEMORY.QUERY", {}, defaults={"queryLimit": 0})
    assert fault(result) == invalid("queryLimit must be an integer in 1..10000")


async def test_m52_a_call_carries_signal_and_runtime() -> None:
    store = SearchingStore(**GOOD)
    signal, runtime = Signal(), Invoker()
    await create_memory(store=store).execute("MEMORY.QUERY", {}, signal=signal, runtime=runtime)
    [(_, _, options)] = store.calls
    assert options.signal is signal
    assert options.runtime is runtime


class Invoker:
    async def invoke(self, node: str, input: Any, *, signal: Signal | None = None) -> Any:
        raise AssertionError


# --- cancellation


@pytest.mark.parametrize(("method", "given"), CALLS)
async def test_m54_m55_the_plugin_sees_the_same_signal_and_an_abort_gives_cancelled(method: str, given: Any) -> None:
    signal = Signal()

    def abort(input: Any, options: CallOptions) -> Any:
        assert options.signal is signal
        signal.abort()
        raise RuntimeError("stopped")

    store = always(abort)
    memory = create_memory(store=store)
    assert cancelled(await getattr(memory, method)(given, signal=signal))
    assert cancelled(await getattr(memory, method)(given, signal=signal))
    assert len(store.calls) == 1


@pytest.mark.parametrize(
    ("node", "given"),
    [("MEMORY.QUERY", {"limit": 0}), ("MEMORY.NONE", {}), ("MEMORY.WRITE", {"memories": []}), ("MEMORY.GET", None)],
)
async def test_m56_an_aborted_signal_outranks_every_other_outcome(node: str, given: Any) -> None:
    store = always(None)
    assert cancelled(await create_memory(store=store).execute(node, given, signal=aborted()))
    assert store.calls == []


@pytest.mark.parametrize("error", [PluginError("CONFLICT", "conflict"), ValueError("x")])
async def test_m56_it_outranks_plugin_errors_and_breaches(error: Exception | None) -> None:
    signal = Signal()

    def fail(input: Any, options: CallOptions) -> Any:
        signal.abort()
        if error is not None:
            raise error

    assert cancelled(await create_memory(store=always(fail)).query({}, signal=signal))


@pytest.mark.parametrize(("method", "given"), CALLS)
async def test_m57_an_abort_during_a_success_gives_cancelled(method: str, given: Any) -> None:
    signal = Signal()

    def succeed(input: Any, options: CallOptions) -> Any:
        signal.abort()
        return GOOD[method]

    store = always(succeed)
    assert cancelled(await getattr(create_memory(store=store), method)(given, signal=signal))
    assert len(store.calls) == 1


async def test_m58_a_timeout_signal_gives_cancelled_too() -> None:
    class Slow(SearchingStore):
        async def query(self, input: Any, options: CallOptions) -> Any:
            assert options.signal is not None
            await options.signal.wait()
            options.signal.raise_if_aborted()

    assert cancelled(await create_memory(store=Slow()).query({}, signal=Signal.timeout(0.01)))


async def test_m60_without_signal_and_runtime_the_options_are_empty() -> None:
    store = SearchingStore(**GOOD)
    memory = create_memory(store=store)
    for method, given in CALLS:
        assert (await getattr(memory, method)(given)).status == "success"
    assert [options for _, _, options in store.calls] == [CallOptions()] * 6
    assert CallOptions() == CallOptions(signal=None, runtime=None)


class ClientLeft(Exception):
    """A reason that is no SignalAborted, as the service's are."""


@pytest.mark.parametrize(
    ("raised", "abort", "level", "message"),
    [
        (None, True, logging.DEBUG, "a MEMORY call was cancelled"),
        (RuntimeError("password=secret"), True, logging.INFO, "a MEMORY backend ended a cancelled call with an error"),
        (RuntimeError("password=secret"), False, logging.ERROR, "a MEMORY backend failed"),
    ],
    ids=["its reason", "something else", "not aborted"],
)
async def test_what_an_aborted_call_raises_is_no_failure_of_the_backend(
    caplog: pytest.LogCaptureFixture, raised: Exception | None, abort: bool, level: int, message: str
) -> None:
    """None: it raises the signal's reason."""
    signal, reason = Signal(), ClientLeft("password=secret")

    class Store(SearchingStore):
        async def query(self, input: Any, options: CallOptions) -> Any:
            if abort:
                signal.abort(reason)
            raise raised or reason

    with caplog.at_level(logging.DEBUG, logger="memplane"):
        await create_memory(store=Store()).query({}, signal=signal)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (level, message)
    assert vars(record)["error"] == type(raised or reason).__name__
    assert "secret" not in str(vars(record))


# --- asyncio's own cancellation


class Hanging(SearchingStore):
    """A plugin that waits for ever; what it waits for can be cancelled by the signal or by the task."""

    def __init__(self, through_signal: bool) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.through_signal = through_signal

    async def query(self, input: Any, options: CallOptions) -> Any:
        self.started.set()
        await race(asyncio.Event().wait(), options.signal if self.through_signal else None)


async def test_cancelling_the_task_raises_cancelled_error() -> None:
    for signal in (None, Signal()):
        store = Hanging(through_signal=True)
        task = asyncio.create_task(create_memory(store=store).query({}, signal=signal))
        await store.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_cancelling_the_task_wins_over_an_aborted_signal() -> None:
    store, signal = Hanging(through_signal=False), Signal()
    task = asyncio.create_task(create_memory(store=store).query({}, signal=signal))
    await store.started.wait()
    signal.abort()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_plugin_that_cancels_its_own_work_on_abort_gives_a_cancelled_result() -> None:
    signal = Signal()

    class Store(SearchingStore):
        async def query(self, input: Any, options: CallOptions) -> Any:
            work = asyncio.ensure_future(asyncio.Event().wait())
            signal.on_abort(lambda: (work.cancel(), None)[1])
            signal.abort()
            await work

    assert cancelled(await create_memory(store=Store()).query({}, signal=signal))


async def test_race_ends_with_the_signals_reason_and_leaves_no_task_behind() -> None:
    signal = Signal()
    before = asyncio.all_tasks()
    call = asyncio.create_task(create_memory(store=Hanging(through_signal=True)).query({}, signal=signal))
    await asyncio.sleep(0)
    signal.abort()
    assert cancelled(await call)
    assert asyncio.all_tasks() == before
