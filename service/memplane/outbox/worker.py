"""The outbox worker of one target: claims, calls, acknowledges, and never stops for trouble that passes.

One claimer feeds up to `concurrency` batches. A batch gives its place free when its target call returns, so the next
claim overlaps with the acknowledgement. What can pass is waited out: the database (`outbox/patience.py`), the target
(`outbox/breaker.py`). A target that belongs to another backend or model is refused with `IdentityError`.

Stopping: the signal ends claiming; batches in flight get `drain_seconds`; what is claimed but not called by then is
given back, and what is being called keeps its lease, which brings it back. SIGKILL at any point loses nothing for the
same reason. Source: seed `002` section 8; design section 6.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from memplane.errors import SettingsError, TargetUnavailable
from memplane.outbox.breaker import Breaker
from memplane.outbox.claim import claim
from memplane.outbox.delivery import Delivered, Delivery, is_healthy
from memplane.outbox.events import BatchReport, Event, ProjectionTarget, Target, Task
from memplane.outbox.lease import Lease
from memplane.outbox.logs import batch_fields
from memplane.outbox.maintenance import maintain
from memplane.outbox.metrics import Metrics
from memplane.outbox.notify import Wakeup, listen
from memplane.outbox.pace import Pace
from memplane.outbox.patience import DATABASE_ERRORS, GaveUp, Patience, rest
from memplane.outbox.probes import Point, Probe, no_probe
from memplane.outbox.putback import give_back
from memplane.outbox.retry import RetryPolicy
from memplane.outbox.settlement import Settlement
from memplane.outbox.traces import BatchTrace
from memplane.outbox.truth import read_truths
from memplane.schema.database import Database
from memplane.settings import OutboxSettings
from memplane.signal import Signal
from memplane.tracing import Tracer

logger = logging.getLogger(__name__)

GIVE_BACK_SECONDS = 2.0
"""What is left for giving back after the drain's time is over."""


@dataclass(slots=True)
class _Batch:
    """A claimed batch in flight. `granted_at`: a monotonic time at which its lease had not begun yet."""

    events: Sequence[Event]
    granted_at: float
    delivered: Delivered = field(default_factory=Delivered)


def check_settings(settings: OutboxSettings) -> None:
    """Raise `SettingsError` for values that cannot work together."""
    if settings.renew_seconds * 2 > settings.lease_seconds:
        raise SettingsError(
            f"outbox.renew_seconds ({settings.renew_seconds:g}) must be at most half of "
            f"outbox.lease_seconds ({settings.lease_seconds:g})"
        )


class OutboxWorker:
    """Keeps one target equal to the truth. `run` returns only after its signal is aborted and the drain is over."""

    def __init__(
        self,
        database: Database,
        target: ProjectionTarget,
        settings: OutboxSettings,
        *,
        worker_id: str | None = None,
        metrics: Metrics | None = None,
        probe: Probe = no_probe,
        tracer: Tracer | None = None,
    ) -> None:
        check_settings(settings)
        self._database = database
        self._target = target
        self._settings = settings
        self._metrics = metrics
        self._probe = probe
        self._tracer = tracer
        self._worker_id = worker_id or f"{socket.gethostname()}:{os.getpid()}:{target.name.value}"
        # Caches have nothing to compare with, and one that is not told serves what is old.
        self._shadow = settings.mode == "Shadow" and target.name is not Target.LTM_CACHE
        self._abandon = Signal()
        self._patience = Patience()
        self._policy = RetryPolicy.of(settings)
        self._breaker = Breaker(settings.breaker_seconds)
        self._delivery = Delivery(target, call_timeout=settings.call_timeout, probe=probe)
        self._settlement = Settlement(
            database,
            target.name,
            self._policy,
            patience=self._patience,
            abandon=self._abandon,
            metrics=metrics,
            uncertain_delay_seconds=settings.call_timeout,
        )
        self._wakeup = Wakeup()
        self._pace = Pace(settings.batch_size)
        self._places = asyncio.Semaphore(settings.concurrency)
        self._settling = asyncio.Semaphore(settings.concurrency + 1)
        self._batches: dict[asyncio.Task[None], _Batch] = {}
        self._failures_in_row = 0
        if metrics is not None:
            metrics.announce(target.name)
        self.total = BatchReport(target.name)
        """What this worker has done so far."""

    async def run(self, signal: Signal) -> None:
        """Work until `signal` is aborted. Raises `IdentityError` and other refusals of `target.start()`."""
        if not await self._start(signal):
            return
        helpers = [
            asyncio.create_task(listen(self._database, self._target.name, self._wakeup, signal), name="outbox-listen"),
            asyncio.create_task(
                maintain(
                    self._database, self._target.name, self._settings, self._patience, wakeup=self._wakeup, stop=signal
                ),
                name="outbox-maintain",
            ),
        ]
        remove = signal.on_abort(self._wakeup.now)
        try:
            await self._feed(signal)
        except GaveUp:
            logger.info("stopped while the database was away", extra={"target": self._target.name.value})
        finally:
            remove()
            await self._drain()
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._target.close()

    async def _start(self, signal: Signal) -> bool:
        """Start the target, waiting while it or the database is away. False when stopped first."""
        pause, told = 0.2, False
        while not signal.aborted:
            try:
                await self._target.start()
            except TargetUnavailable as error:
                if not told:
                    logger.warning(
                        "waiting for the target",
                        extra={"target": self._target.name.value, "away": error.target, "reason": error.reason},
                    )
                    told = True
                await rest(signal, pause * (0.5 + random.random()))  # noqa: S311 - jitter, not a secret
                pause = min(self._settings.breaker_seconds, pause * 2)
            else:
                logger.info(
                    "outbox worker started",
                    extra={"target": self._target.name.value, "worker": self._worker_id},
                )
                return True
        return False

    async def _feed(self, signal: Signal) -> None:
        """Claim batches and start them until `signal`."""
        settings = self._settings
        while not signal.aborted:
            if not self._breaker.closed and not await self._recovered(signal):
                continue
            await self._places.acquire()
            if signal.aborted or not self._breaker.closed:
                self._places.release()
                continue
            try:
                self._wakeup.lower()
                granted_at, events = await self._patience.insist(self._claim, signal)
            except BaseException:
                self._places.release()
                raise
            if not events:
                self._places.release()
                # The flag was lowered before the claim: what was committed since then has raised it again.
                await self._wakeup.wait(settings.poll_seconds * (0.5 + random.random()))  # noqa: S311 - jitter
                continue
            batch = _Batch(events, granted_at)
            task = asyncio.create_task(self._process(batch), name="outbox-batch")
            self._batches[task] = batch
            task.add_done_callback(self._batch_ended)

    async def _claim(self) -> tuple[float, list[Event]]:
        """The claim and, by the monotonic clock, a time at which its lease had not begun yet."""
        asked_at = time.monotonic()
        events = await claim(
            self._database,
            self._target.name,
            worker=self._worker_id,
            limit=self._pace.limit,
            lease_seconds=self._settings.lease_seconds,
        )
        return asked_at, events

    def _batch_ended(self, batch: asyncio.Task[None]) -> None:
        abandoned = self._batches.pop(batch, None)
        # A memory is free again: its next event may be waiting for just that.
        self._wakeup.now()
        if not batch.cancelled() and (error := batch.exception()) is not None and not isinstance(error, GaveUp):
            # A defect must not stop the worker; the lease brings the events back, alone next time.
            events = abandoned.events if abandoned is not None else []
            logger.error("a batch was abandoned", extra=batch_fields(events, error=type(error).__name__))

    async def _process(self, batch: _Batch) -> None:
        """Project one claimed batch and write down what became of it."""
        self.total.claimed += len(batch.events)
        trace = BatchTrace(self._tracer, self._target.name, batch.events)
        try:
            await self._work_off(batch)
        finally:
            trace.end(batch.delivered)

    async def _work_off(self, batch: _Batch) -> None:
        lease = Lease(
            self._database,
            batch.events,
            granted_at=batch.granted_at,
            lease_seconds=self._settings.lease_seconds,
            renew_seconds=self._settings.renew_seconds,
        )
        try:
            async with lease:
                await self._project(batch, lease)
        finally:
            self._places.release()
        self._judge(batch.delivered)
        async with self._settling:
            await self._probe(Point.BEFORE_ACKNOWLEDGEMENT)
            report = await self._settlement.settle(batch.delivered, shadow=self._shadow)
        self._count(report)

    async def _project(self, batch: _Batch, lease: Lease) -> None:
        truths = await self._patience.insist(
            lambda: read_truths(self._database, batch.events, self._target.needs), self._abandon
        )
        tasks = [Task(event, truths[event.id]) for event in batch.events]
        if unready := [task.event for task in tasks if task.truth.live and not task.truth.content_hash]:
            # Never projected without its hash: an event that comes with the hash supersedes this one.
            batch.delivered.unready += unready
            tasks = [task for task in tasks if not task.truth.live or task.truth.content_hash]
        if self._shadow:
            await self._delivery.compare(tasks, lease, batch.delivered)
        else:
            await self._delivery.deliver(tasks, lease, batch.delivered)

    def _judge(self, delivered: Delivered) -> None:
        """Breaker, pace and consecutive failures, from how one batch went."""
        if delivered.late:
            self._pace.late()
        elif delivered.outcomes:
            self._pace.in_time()
        if delivered.unhealthy and self._breaker.trip():
            logger.warning(
                "the target is unhealthy; nothing is claimed until it answers",
                extra=batch_fields(delivered.returned) | {"target": self._target.name.value},
            )
        failed = delivered.unhealthy or (bool(delivered.failures) and not delivered.outcomes)
        self._failures_in_row = self._failures_in_row + 1 if failed else 0
        if self._metrics is not None:
            self._metrics.consecutive_failures.labels(self._target.name.value).set(self._failures_in_row)

    def _count(self, report: BatchReport) -> None:
        total = self.total
        total.processed += report.processed
        total.retried += report.retried
        total.dead += report.dead
        total.lost += report.lost
        for verdict, count in report.verdicts.items():
            total.verdicts[verdict] = total.verdicts.get(verdict, 0) + count

    async def _recovered(self, signal: Signal) -> bool:
        """Wait for the breaker's pause, then ask the target. True when it is healthy and the breaker is closed."""
        await rest(signal, self._breaker.remaining())
        if signal.aborted:
            return False
        if await is_healthy(self._target, self._settings.call_timeout):
            try:
                await self._target.start()
            except Exception as error:  # noqa: BLE001 - whatever it is, the worker waits: another pause, another try
                # It answers but is not ours to write to (another backend, model or dimension), or it went away again.
                logger.error(
                    "the target answers but refuses to start",
                    extra={"target": self._target.name.value, "error": type(error).__name__},
                )
            else:
                self._breaker.reset()
                logger.info("the target is healthy again", extra={"target": self._target.name.value})
                return True
        self._breaker.trip()
        return False

    async def _drain(self) -> None:
        """Let the batches in flight end; after `drain_seconds` they are abandoned to their leases."""
        batches = dict(self._batches)
        if not batches:
            return
        logger.info("draining", extra={"target": self._target.name.value, "batches": len(batches)})
        _, late = await asyncio.wait(batches, timeout=self._settings.drain_seconds)
        self._abandon.abort()
        if not late:
            return
        for task in late:
            task.cancel()
        await asyncio.wait(late, timeout=1)
        await self._give_back_untouched([batches[task] for task in late])

    async def _give_back_untouched(self, batches: Sequence[_Batch]) -> None:
        """After the drain's time: events that no call has seen go back at once, the others when their lease ends."""
        untouched = [event for batch in batches for event in batch.events if event.id not in batch.delivered.attempted]
        try:
            async with asyncio.timeout(GIVE_BACK_SECONDS):
                given_back = await give_back(self._database, untouched)
        except DATABASE_ERRORS:
            given_back = {}
        logger.warning(
            "the drain's time is over",
            extra={
                "target": self._target.name.value,
                "given_back": len(given_back),
                "left_to_their_lease": sum(len(batch.events) for batch in batches) - len(given_back),
            },
        )
