"""Running saved tasks: which entry a task needs next, and one run of it under the task's lease."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memplane.errors import MemplaneError
from memplane.recovery.documents import Job, approved
from memplane.recovery.entries import (
    resume_paused,
    run_checkpoint,
    run_compensation,
    run_fallback,
    run_pause,
    run_retry,
    run_side_effect_check,
    run_timeout,
)
from memplane.recovery.errors import JobBusy, RecoveryError
from memplane.recovery.jobs import JobStore
from memplane.recovery.leases import LEASE_SECONDS, held
from memplane.recovery.steps import FlowRuntime
from memplane.signal import Signal

log = logging.getLogger(__name__)

Entry = Callable[..., Awaitable[Job]]

FLOWS: Mapping[str, Entry] = {
    "retry": run_retry,
    "fallback": run_fallback,
    "timeout": run_timeout,
    "checkpoint": run_checkpoint,
    "compensation": run_compensation,
    "side-effect-check": run_side_effect_check,
}
"""Flows that take a task to its end. Pausing comes by itself with tasks that require approval."""

STUCK = ("uncertain", "timed-out")
"""Waiting for the outside world: they are taken up again when it may have changed."""
OPEN = ("queued", "prepared", "approved", "reserved")
"""Not at an end and waiting for nobody; `prepared` waits when an approval is missing."""


def next_entry(job: Job, flow: str) -> Entry | None:
    """What the task needs now; None: it is at an end or waits for a person. Raises `RecoveryError`: unknown flow."""
    if flow not in FLOWS:
        raise RecoveryError(f"Unknown flow; known are {', '.join(FLOWS)}")
    if job["stage"] not in (*OPEN, *STUCK):
        return FLOWS[flow] if flow == "compensation" and _may_compensate(job) else None
    if not job["requiresApproval"]:
        return FLOWS[flow]
    if job["approval"] is None:
        return run_pause if job["stage"] in ("queued", "prepared") else None
    return resume_paused if approved(job) else None


def _may_compensate(job: Job) -> bool:
    rejected = job["stage"] == "needs-review" and job["reservation"] is not None and job["shipment"] is None
    return rejected and not str(job["error"]).startswith("COMPENSATION_")


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one task. `error`: the message of what was raised; `busy`: another process runs it."""

    id: str
    stage: str
    error: str | None = None
    busy: bool = False


class JobRunner:
    """Runs tasks of one store on one runtime. model: `{provider, model}` for the flows."""

    def __init__(
        self,
        jobs: JobStore,
        runtime: FlowRuntime,
        model: Mapping[str, Any],
        *,
        flow: str = "compensation",
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        if flow not in FLOWS:
            raise RecoveryError(f"Unknown flow; known are {', '.join(FLOWS)}")
        self._jobs, self._runtime, self._model = jobs, runtime, model
        self._flow, self._seconds = flow, lease_seconds
        self._process = f"{os.uname().nodename}-{os.getpid()}"

    async def run(self, job_id: str, *, signal: Signal | None = None) -> Ran:
        """Take the task as far as it goes. Raises `RecoveryError` for an unknown one, and the signal's reason."""
        job = await self._jobs.load(job_id)
        if next_entry(job, self._flow) is None:
            return Ran(job_id, job["stage"])
        # Of this run alone: a later one of the same process must not be taken for it.
        owner = f"{self._process}-{uuid.uuid4().hex[:8]}"
        try:
            async with held(self._jobs, job_id, owner, self._seconds, signal=signal) as held_signal:
                # Read again: before the lease was ours another process may have gone on.
                entry = next_entry(await self._jobs.load(job_id), self._flow)
                if entry is not None:
                    await entry(self._runtime, {"id": job_id, "model": dict(self._model)}, signal=held_signal)
        except JobBusy:
            return Ran(job_id, (await self._jobs.load(job_id))["stage"], busy=True)
        except MemplaneError as error:
            if signal is not None:
                signal.raise_if_aborted()
            return Ran(job_id, (await self._jobs.load(job_id))["stage"], error=str(error))
        return Ran(job_id, (await self._jobs.load(job_id))["stage"])

    async def run_all(
        self, stages: Sequence[str], *, skip: Collection[str] = (), signal: Signal | None = None
    ) -> list[Ran]:
        """Every task at one of these stages that waits for nobody, one after the other, without those of `skip`."""
        ran: list[Ran] = []
        after = ""
        while page := await self._jobs.jobs(stages=stages, after=after):
            for job in page:
                if signal is not None:
                    signal.raise_if_aborted()
                if job["id"] not in skip and next_entry(job, self._flow) is not None:
                    ran.append(await self.run(job["id"], signal=signal))
            after = page[-1]["id"]
        return ran


async def serve(runner: JobRunner, signal: Signal, *, poll_seconds: float, stuck_seconds: float) -> None:
    """Take up open tasks every `poll_seconds` and stuck ones every `stuck_seconds`, until the signal aborts.

    A task that raises (its model answers nonsense, say) is tried again with the stuck ones, not every round. A round
    that meets a server that is away is logged and repeated.
    """
    since_stuck = stuck_seconds
    raised: set[str] = set()
    while not signal.aborted:
        with_stuck = since_stuck >= stuck_seconds
        since_stuck = 0.0 if with_stuck else since_stuck + poll_seconds
        if with_stuck:
            raised.clear()
        stages = (*OPEN, "needs-review", *(STUCK if with_stuck else ()))
        try:
            for ran in await runner.run_all(stages, skip=raised, signal=signal):
                if ran.error:
                    raised.add(ran.id)
                log.info("task %s is at %s%s", ran.id, ran.stage, f": {ran.error}" if ran.error else "")
        except MemplaneError as error:
            log.warning("a round of recovery ended early: %s", error)
        except BaseException as error:
            if error is signal.reason:
                return
            raise
        pause = Signal.any(signal, Signal.timeout(poll_seconds))
        await pause.wait()
