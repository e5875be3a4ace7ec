"""The eight entries. Each takes a runtime, `{id, model, …}` and a signal, and returns the saved task.

All may be called again after a crash, on the same task: what was done is found and not done twice. Source: seed `004`,
behaviours 6.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.recovery.documents import MAX_SOURCE_BYTES, Job, task_id
from memplane.recovery.errors import RecoveryError
from memplane.recovery.fulfilment_flow import compensate, fulfil, prepare, set_stage
from memplane.recovery.steps import Flow, FlowRuntime, code_of, extract, parsed_json
from memplane.runtime import graph, loop
from memplane.runtime.canonical import snapshot
from memplane.signal import Signal

Input = Mapping[str, Any]


def _flow(runtime: FlowRuntime, input: Input, signal: Signal | None) -> Flow:  # noqa: A002 - the entries' public name
    model = input.get("model")
    if not isinstance(model, Mapping):
        raise RecoveryError("Provide the model")
    if signal is not None:
        signal.raise_if_aborted()
    return Flow(runtime, task_id(input.get("id")), model, signal)


def _limit(input: Input, name: str, default: int, allowed: range, message: str) -> int:  # noqa: A002
    value = input.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise RecoveryError(message)
    return value


async def run_retry(runtime: FlowRuntime, input: Input, *, signal: Signal | None = None) -> Job:  # noqa: A002
    """Read the source with a growing allowance, then the main flow.

    `initialMaxBytes` (1..65536, default 16), `maxAttempts` (1..5, default 3). Only an error that is retryable by its
    code and says how many bytes it needs starts another attempt; anything else ends the task as `failed`.
    """
    most = _limit(input, "initialMaxBytes", 16, range(1, MAX_SOURCE_BYTES + 1), "Invalid retry limits")
    attempts = _limit(input, "maxAttempts", 3, range(1, 6), "Invalid retry limits")
    flow = _flow(runtime, input, signal)
    if (await flow.job())["stage"] == "queued":
        read = await _read_with_retries(flow, most, attempts)
        if read["status"] != "success":
            job = await set_stage(flow, "failed", code_of(read))
            await flow.done("recovery_report")
            return job
        source = read["structuredContent"]
        await extract(flow, source["text"], source["sourceHash"])
    return await fulfil(flow)


async def _read_with_retries(flow: Flow, most: int, attempts: int) -> dict[str, Any]:
    """The native Loop: one read a round; state {maxBytes, attempt, result}."""

    def call(state: dict[str, Any]) -> dict[str, Any]:
        arguments = {"id": flow.id, "maxBytes": state["maxBytes"]}
        return {"id": f"{flow.id}-source-{state['attempt']}", "name": "recovery_source", "arguments": arguments}

    def update(state: dict[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
        result = snapshot(outputs["source"])
        required = (result.get("metadata") or {}).get("requiredBytes")
        allowance = required if isinstance(required, int) else state["maxBytes"]
        return {"maxBytes": min(max(allowance, 1), MAX_SOURCE_BYTES), "attempt": state["attempt"] + 1, "result": result}

    def done(state: dict[str, Any]) -> bool:
        result = state["result"]
        again = code_of(result) == "SOURCE_TOO_LARGE" and (result.get("error") or {}).get("retryable") is True
        return result["status"] == "success" or not again or state["attempt"] >= attempts

    plan = graph("recovery-read").node("source", "INTERACTION.ACT.TOOL", [], lambda value: {"call": value})
    definition = loop(id="recovery-retry", graph=plan, bind=call, update=update, done=done, max_iterations=attempts)
    state = await flow.runtime.loop(definition, {"maxBytes": most, "attempt": 0, "result": None}, signal=flow.signal)
    result: dict[str, Any] = state["result"]
    return result


async def run_fallback(runtime: FlowRuntime, input: Input, *, signal: Signal | None = None) -> Job:  # noqa: A002
    """Ask the allowed catalogs in order; only UNAVAILABLE moves on to the next. `allowedSources`, default both."""
    allowed = input.get("allowedSources", ["primary", "backup"])
    valid = (
        isinstance(allowed, list | tuple)
        and len(allowed) > 0
        and all(name in ("primary", "backup") for name in allowed)
        and len(set(allowed)) == len(allowed)
    )
    if not valid:
        raise RecoveryError("Invalid fallback allowlist")
    flow = _flow(runtime, input, signal)
    job = await prepare(flow)
    if job["stage"] == "prepared" and job["selectedSource"] is None:
        code = "UNAVAILABLE"
        for source in allowed:
            result = await flow.tool("recovery_catalog", source=source)
            if result["status"] == "success":
                return await fulfil(flow)
            code = code_of(result)
            if code != "UNAVAILABLE":
                break
        job = await set_stage(flow, "failed", code)
        await flow.done("recovery_report")
        return job
    return await fulfil(flow)


async def run_timeout(runtime: FlowRuntime, input: Input, *, signal: Signal | None = None) -> Job:  # noqa: A002
    """Give the catalog read `timeoutMs` (1..60000, default 75), nothing else; too late is stage `timed-out`.

    The caller's own abort is raised, never turned into a time out.
    """
    milliseconds = _limit(input, "timeoutMs", 75, range(1, 60_001), "Invalid timeout")
    flow = _flow(runtime, input, signal)
    job = await prepare(flow)
    if job["stage"] not in ("prepared", "timed-out"):
        return await fulfil(flow)
    deadline = Signal.timeout(milliseconds / 1000)
    try:
        result = await flow.tool("recovery_catalog", source="primary", signal=Signal.any(signal, deadline))
    except BaseException as error:
        if signal is not None:
            signal.raise_if_aborted()
        if error is not deadline.reason:
            raise
        job = await set_stage(flow, "timed-out", "CATALOG_TIMEOUT")
        await flow.done("recovery_report")
        return job
    if result["status"] != "success":
        job = await set_stage(flow, "failed", code_of(result))
        await flow.done("recovery_report")
        return job
    return await fulfil(flow)


async def run_checkpoint(
    runtime: FlowRuntime,
    input: Input,  # noqa: A002
    *,
    stop_after: str | None = None,
    signal: Signal | None = None,
) -> Job:
    """The main flow; `stop_after` "prepared" or "reserved" ends it at that checkpoint."""
    if stop_after not in (None, "prepared", "reserved"):
        raise RecoveryError("stop_after is prepared or reserved")
    flow = _flow(runtime, input, signal)
    await prepare(flow)
    return await fulfil(flow, stop_after=stop_after)


async def run_pause(runtime: FlowRuntime, input: Input, *, signal: Signal | None = None) -> Job:  # noqa: A002
    """Prepare, then wait for a person: stage `paused`. The task must have been created with approval required."""
    flow = _flow(runtime, input, signal)
    job = await prepare(flow)
    if not job["requiresApproval"]:
        raise RecoveryError("Create this task with requiresApproval enabled")
    if job["stage"] == "prepared":
        job = await set_stage(flow, "paused")
    await flow.done("recovery_report")
    return job


async def resume_paused(runtime: FlowRuntime, input: Input, *, signal: Signal | None = None) -> Job:  # noqa: A002
    """Go on after a decision: approved → the main flow; rejected or undecided → the saved task."""
    flow = _flow(runtime, input, signal)
    job = await flow.job()
    if job["stage"] != "paused" and job["approval"] is None:
        raise RecoveryError("A persisted approval is required")
    return await fulfil(flow)


_ANSWER = (
    "Answer the question about this fulfilment task with one JSON object and nothing else: "
    '{"sku": string, "quantity": integer, "stage": string}, all taken from the current state.'
)
_QUESTION = "What is the current order, and how far is it?"


async def run_session(runtime: FlowRuntime, input: Input, *, signal: Signal | None = None) -> dict[str, Any]:  # noqa: A002
    """Continue the saved conversation: `{job, answer}`. `question` has at most 1000 characters.

    An answer that does not fit the task exactly is an error, and nothing of it is stored. No operation is submitted.
    """
    flow = _flow(runtime, input, signal)
    job = await prepare(flow)
    question = input.get("question", _QUESTION)
    if not isinstance(question, str) or not question.strip() or len(question) > 1000:
        raise RecoveryError("Invalid session question")
    order = job["order"]
    if order is None:
        raise RecoveryError("The task has no order yet")
    state = {"sku": order["sku"], "quantity": order["quantity"], "stage": job["stage"]}
    context = await _update(
        flow,
        job["context"],
        remove=[f"{flow.id}-current-state"],
        add=[
            {"id": f"{flow.id}-current-state", "content": f"Current state: {state}".replace("'", '"')},
            {"id": f"{flow.id}-question-{job['revision']}", "content": question},
        ],
    )
    messages = [{"role": "system", "content": _ANSWER}]
    messages += [{"role": "user", "content": str(item["content"])} for item in context["items"]]
    text = await flow.sample(messages)
    answer = parsed_json(text)
    if answer != state:
        raise RecoveryError("The answer does not fit the current order")
    context = await _update(
        flow, context, remove=[], add=[{"id": f"{flow.id}-answer-{job['revision']}", "content": text}]
    )
    job = await flow.done("recovery_context", context=context, answer=answer)
    await flow.done("recovery_report")
    return {"job": job, "answer": answer}


async def _update(flow: Flow, context: Any, *, remove: list[str], add: list[dict[str, Any]]) -> dict[str, Any]:
    """One CONTEXT.UPDATE of a context that is passed along."""
    plan = graph("recovery-context").node("update", "CONTEXT.UPDATE", [], lambda value: value)
    present = {item["id"] for item in context["items"]}
    change = {"context": context, "removeIds": [name for name in remove if name in present], "add": add}
    result: dict[str, Any] = snapshot((await flow.runtime.run(plan, change, signal=flow.signal))["update"])
    return result


async def run_compensation(runtime: FlowRuntime, input: Input, *, signal: Signal | None = None) -> Job:  # noqa: A002
    """The main flow; a shipment that was clearly rejected releases its reservation: `compensated` or `needs-review`."""
    flow = _flow(runtime, input, signal)
    await prepare(flow)
    job = await compensate(flow, await fulfil(flow))
    await flow.done("recovery_report")
    return job


async def run_side_effect_check(runtime: FlowRuntime, input: Input, *, signal: Signal | None = None) -> Job:  # noqa: A002
    """The main flow, for tasks whose last outcome is unknown: ask the ledger first, go on when it tells."""
    flow = _flow(runtime, input, signal)
    await prepare(flow)
    return await fulfil(flow)


__all__ = [
    "resume_paused",
    "run_checkpoint",
    "run_compensation",
    "run_fallback",
    "run_pause",
    "run_retry",
    "run_session",
    "run_side_effect_check",
    "run_timeout",
]
