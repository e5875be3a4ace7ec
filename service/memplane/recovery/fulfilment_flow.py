"""The flow that all entries share: prepare, reserve, ship, and what an uncertain outcome means. Source: V-05 … V-09.

Before anything is sent the ledger is asked; a lookup that fails is never taken for absence; what was sent and not
answered is looked up once, and stays `uncertain` until the service tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memplane.recovery.documents import MAX_SOURCE_BYTES, Job, Kind
from memplane.recovery.steps import Flow, content_of, extract, look_up, submit

FINISHED = frozenset({"completed", "compensated", "rejected", "failed", "needs-review", "paused"})
"""Stages at which the main flow returns the saved task unchanged."""


async def prepare(flow: Flow) -> Job:
    """queued → prepared: read the source, ask the model once. Any other stage touches neither."""
    job = await flow.job()
    if job["stage"] != "queued":
        return job
    source = content_of(await flow.tool("recovery_source", maxBytes=MAX_SOURCE_BYTES))
    return await extract(flow, source["text"], source["sourceHash"])


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of an operation. `settled`: the checkpoint stands; `rejected`: the business reason;
    neither: the outcome is not known yet, `error` says in which way."""

    settled: Job | None = None
    rejected: str | None = None
    error: str = "OUTCOME_UNKNOWN"


async def resolve(flow: Flow, kind: Kind) -> Resolution:
    """Look up, submit if absent, look up once more if the answer is not usable (V-07)."""
    result = await look_up(flow, kind)
    if result["status"] != "success":
        return Resolution()
    if result["structuredContent"]["state"] == "absent":
        result = await submit(flow, kind)
        if result["status"] != "success":
            result = await look_up(flow, kind)
    if result["status"] != "success":
        return Resolution()
    operation: dict[str, Any] = result["structuredContent"]
    if operation["state"] == "committed":
        return Resolution(settled=await flow.done("recovery_checkpoint", kind=kind, operation=operation))
    if operation["state"] == "rejected":
        return Resolution(rejected=operation["code"])
    return Resolution(error="OPERATION_PENDING" if operation["state"] == "pending" else "OUTCOME_UNKNOWN")


async def set_stage(flow: Flow, stage: str, error: str | None = None) -> Job:
    """Save a stage that flows may set."""
    job: Job = await flow.done("recovery_state", stage=stage, error=error)
    return job


async def fulfil(flow: Flow, *, stop_after: str | None = None) -> Job:
    """From wherever the task stands to its end, or to `stop_after`; the result file is written at the end."""
    job = await flow.job()
    undecided = job["requiresApproval"] and job["approval"] is None
    if job["stage"] not in FINISHED and not undecided:
        job = await _advance(flow, job, stop_after)
    await flow.done("recovery_report")
    return job


async def _advance(flow: Flow, job: Job, stop_after: str | None) -> Job:
    if stop_after == "prepared" and job["stage"] == "prepared":
        return job
    if job["reservation"] is None:
        reserved = await resolve(flow, "reserve")
        if reserved.rejected is not None:
            return await set_stage(flow, "failed", reserved.rejected)
        if reserved.settled is None:
            return await set_stage(flow, "uncertain", reserved.error)
        job = reserved.settled
    if stop_after == "reserved" and job["stage"] == "reserved":
        return job
    shipped = await resolve(flow, "ship")
    if shipped.rejected is not None:
        return await set_stage(flow, "needs-review", shipped.rejected)
    if shipped.settled is None:
        return await set_stage(flow, "uncertain", shipped.error)
    return shipped.settled


COMPENSATION = "COMPENSATION_"


async def compensate(flow: Flow, job: Job) -> Job:
    """Release a reservation whose shipment was clearly rejected; never while that is uncertain (V-26, V-27).

    A release that is itself uncertain leaves the task as it is, so that the next run asks again.
    """
    if job["stage"] != "needs-review" or job["reservation"] is None or job["shipment"] is not None:
        return job
    if str(job["error"]).startswith(COMPENSATION):
        return job
    shipment = await look_up(flow, "ship")
    if shipment["status"] != "success" or shipment["structuredContent"]["state"] != "rejected":
        return job
    released = await resolve(flow, "release")
    if released.settled is not None:
        return released.settled
    if released.rejected is not None:
        return await set_stage(flow, "needs-review", COMPENSATION + released.rejected)
    return job
