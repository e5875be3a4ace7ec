"""The Milvus target: what an outbox worker does to keep the vector index equal to the truth.

Milvus has no compare-and-set. So the stored version and digest are read first, `decide` says what to do, one upsert and
one delete do it, and a Strong read confirms it. In between only a worker that lost its lease could interfere; if it
did, what differs is written once more, and in the end the task fails and is retried.

The first read is Bounded, not Strong: a Strong read waits for the server's next clock tick (200 ms) to prove what held
when it began, so its answer is as old as that of a Bounded one, which does not wait. Where a read that is behind would
do harm, nothing depends on it: the dead are deleted whether seen or not, and repairs always write.

Source: seed `002` section 9; design sections 5 and 6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memplane.contracts import JSON
from memplane.errors import MemplaneError, TargetUnavailable
from memplane.outbox.events import Needs, Outcome, Target, Task, TaskFailed, Verdict
from memplane.projections.decide import Decision, Held, decide_delete, decide_upsert, delete_version
from memplane.projections.embedding import StoredEmbeddings
from memplane.projections.errors import ProjectionMissing, TargetTimeout
from memplane.projections.generation import Generation
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_collection import kinds
from memplane.projections.milvus_generations import MilvusGenerations, Written
from memplane.projections.milvus_row import expected
from memplane.schema.database import Database

ROUNDS = 3
"""How often a batch is written before a row that still differs counts as failed."""

CALL_BYTES = 16 * 2**20
"""Rows of one upsert call take at most about this much; Milvus accepts 64 MiB."""

READ_ROWS = 8192
"""Ids of one read; Milvus returns at most 16,384 rows."""


@dataclass(slots=True)
class _Plan:
    """One task while its batch is worked on."""

    task: Task
    row: dict[str, JSON] | None
    """The row to hold but its vector; None when the memory is dead."""
    size: int = 0
    decision: Decision = field(default_factory=lambda: Decision(True, Verdict.APPLIED))

    def decide(self, held: Held | None) -> Decision:
        repair = self.task.event.repair
        if self.row is None:
            return decide_delete(held, version=delete_version(self.task), repair=repair)
        return decide_upsert(
            held, version=self.task.truth.version, projection_hash=self.row["projection_hash"], repair=repair
        )

    def holds(self, held: Held | None) -> bool:
        """Whether the target holds exactly the truth, as far as version and digest tell."""
        if self.row is None or held is None:
            return self.row is None and held is None
        return held == Held(self.task.truth.version, self.row["projection_hash"])


class MilvusProjection:
    """A `ProjectionTarget` over the collections of the active generation and of one that is being built.

    `previous`: the model of the active generation while the settings name another one for the next. `only`: nothing
    but this generation, for a rebuild.
    """

    def __init__(
        self,
        database: Database,
        milvus: MilvusConnection,
        embeddings: StoredEmbeddings,
        previous: StoredEmbeddings | None = None,
        *,
        only: Generation | None = None,
    ) -> None:
        self.database = database
        self.milvus = milvus
        self.embeddings = embeddings
        known = [embeddings] if previous is None else [embeddings, previous]
        self._generations = MilvusGenerations(database, milvus, known, only=only)
        self._embedding_away: StoredEmbeddings | None = None

    @property
    def name(self) -> Target:
        return Target.MILVUS

    @property
    def needs(self) -> Needs:
        return Needs(fields=True, metadata=True, text=True)

    async def start(self) -> None:
        """Take the active generation, or make the first one, and its collection. Idempotent.

        Raises `IdentityError` when the collection or the generation does not fit, `TargetUnavailable`.
        """
        await self._generations.start()

    async def generation(self) -> Generation:
        """The generation that is read and compared: the active one; its collection exists."""
        await self._generations.start()
        return (await self._generations.written())[0].generation

    async def close(self) -> None:
        """Close the connection to Milvus. Idempotent."""
        await self.milvus.close()

    async def healthy(self) -> bool:
        """Whether Milvus answers, and whatever else was away when last asked: the truth, the embedding provider.

        A model that no setting names is away for as long as a generation needs it.
        """
        return await self._supported() and await self.milvus.healthy()

    async def _supported(self) -> bool:
        away = self._embedding_away
        if away is None and not self._generations.away:
            return True
        try:
            written = await self._generations.written()
        except (MemplaneError, TimeoutError):
            return False
        if away is not None:
            if away.absent and any(one.embeddings.absent for one in written):
                return False
            if not away.absent and not await away.healthy():
                return False
            self._embedding_away = None
        return True

    async def project(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[Outcome]:
        """See `ProjectionTarget.project`. `timeout` in seconds covers everything, embedding included.

        Raises `TimeoutError` when it is over, or when Milvus did not answer one call in time: its effect is unknown.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                return await self._project_existing(tasks, deadline)
        except TargetTimeout:
            raise TimeoutError from None

    async def _project_existing(self, tasks: Sequence[Task], deadline: float) -> Sequence[Outcome]:
        try:
            return await self._project_all(tasks, deadline)
        except ProjectionMissing:
            # Somebody dropped a collection. If its generation is still written, it is made anew; what it held is
            # missing until a full repair.
            pass
        try:
            return await self._project_all(tasks, deadline)
        except ProjectionMissing:
            raise TargetUnavailable("milvus", "its collection vanishes") from None

    async def _project_all(self, tasks: Sequence[Task], deadline: float) -> Sequence[Outcome]:
        """Into every generation, the active one first. The outcome is that of the active one."""
        outcomes: list[Sequence[Outcome]] = []
        for written in await self._generations.written():
            try:
                outcomes.append(await self._project(written, tasks, deadline))
            except ProjectionMissing:
                self._generations.forget(written.generation)
                raise
        return outcomes[0]

    async def _project(self, written: Written, tasks: Sequence[Task], deadline: float) -> Sequence[Outcome]:
        generation = written.generation
        plans = [_plan(task, generation) for task in tasks]
        held = await self._held(generation, (task.truth.memory_id for task in tasks), deadline, "Bounded")
        for plan in plans:
            plan.decision = plan.decide(held.get(plan.task.truth.memory_id))
        pending = [plan for plan in plans if plan.decision.write]
        for _ in range(ROUNDS):
            if not pending:
                return [Outcome(plan.decision.verdict) for plan in plans]
            await self._write(written, pending, deadline)
            held = await self._held(generation, (plan.task.truth.memory_id for plan in pending), deadline)
            pending = [plan for plan in pending if not self._confirmed(plan, held)]
        if not pending:
            return [Outcome(plan.decision.verdict) for plan in plans]
        raise TaskFailed(pending[0].task.truth.memory_id, "another writer keeps changing the row")

    @staticmethod
    def _confirmed(plan: _Plan, held: Mapping[int, Held]) -> bool:
        """Whether the read after the write leaves nothing to do: it shows the truth, or something newer than it."""
        found = held.get(plan.task.truth.memory_id)
        return plan.holds(found) or not plan.decide(found).write

    async def settled(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[bool]:
        """See `ProjectionTarget.settled`."""
        deadline = asyncio.get_running_loop().time() + timeout
        settled = [True] * len(tasks)
        for written in await self._generations.written():
            generation = written.generation
            try:
                held = await self._held(generation, (task.truth.memory_id for task in tasks), deadline)
            except ProjectionMissing:
                self._generations.forget(generation)
                raise TargetUnavailable("milvus", "its collection is missing") from None
            for place, task in enumerate(tasks):
                settled[place] &= _plan(task, generation).holds(held.get(task.truth.memory_id))
        return settled

    async def _held(
        self, generation: Generation, memory_ids: Iterable[int], deadline: float, consistency: str = "Strong"
    ) -> dict[int, Held]:
        wanted = sorted(set(memory_ids))
        rows: list[Mapping[str, Any]] = []
        for start in range(0, len(wanted), READ_ROWS):
            rows += await self.milvus.call(
                "query",
                generation.collection,
                filter=f"memory_id in {wanted[start : start + READ_ROWS]}",
                output_fields=["memory_id", "version", "projection_hash"],
                consistency_level=consistency,
                timeout=_left(deadline),
            )
        return {row["memory_id"]: Held(row["version"], row["projection_hash"]) for row in rows}

    async def _write(self, written: Written, plans: Sequence[_Plan], deadline: float) -> None:
        generation = written.generation
        live = [plan for plan in plans if plan.row is not None]
        for rows in _calls(live, await self._vectors(written.embeddings, live), generation.dimensions):
            await self.milvus.call("upsert", generation.collection, rows, kinds=kinds(), timeout=_left(deadline))
        dead = [plan.task.truth.memory_id for plan in plans if plan.row is None]
        if dead:
            await self.milvus.call("delete", generation.collection, ids=dead, timeout=_left(deadline))

    async def _vectors(self, embeddings: StoredEmbeddings, plans: Sequence[_Plan]) -> Sequence[Sequence[float]]:
        if not plans:
            return []
        truths = [plan.task.truth for plan in plans]
        items = [(truth.tenant, truth.text_hash or b"", truth.text or "") for truth in truths]
        try:
            return await embeddings.vectors(items)
        except TargetUnavailable as unavailable:
            self._embedding_away = embeddings if unavailable.target == "embedding" else None
            raise


def _plan(task: Task, generation: Generation) -> _Plan:
    if not task.truth.live:
        return _Plan(task, None)
    row, size = expected(task.truth, generation)
    return _Plan(task, row, size)


def _calls(
    plans: Sequence[_Plan], vectors: Sequence[Sequence[float]], dimensions: int
) -> Iterator[list[dict[str, JSON]]]:
    """The complete rows, in portions that one call may carry."""
    rows: list[dict[str, JSON]] = []
    size = 0
    for plan, vector in zip(plans, vectors, strict=True):
        assert plan.row is not None
        takes = plan.size + 4 * dimensions
        if rows and size + takes > CALL_BYTES:
            yield rows
            rows, size = [], 0
        rows.append({**plan.row, "vector": vector})
        size += takes
    if rows:
        yield rows


def _left(deadline: float) -> float:
    """Seconds until the deadline; a moment at least, since a driver takes zero for "no limit"."""
    return max(deadline - asyncio.get_running_loop().time(), 0.05)
