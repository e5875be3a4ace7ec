"""What passes between the outbox, its workers and the projection targets (seed `002` sections 5, 8; design section 6).

An event says "this memory is dirty for this target"; its payload is thin. What is projected is the `Truth` that the
worker reads right before the call, so order, repetition and delay of events cannot change the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

TEXT_CHARACTERS = 8000
"""What is read and embedded of a text: its beginning. A batch of long contents must not fill a worker's memory."""


class Target(StrEnum):
    MILVUS = "milvus"
    NEO4J = "neo4j"
    LTM_CACHE = "ltm_cache"


class Family(StrEnum):
    """Events of one memory and target come in two families; each has at most one pending event."""

    NODE = "node"
    EDGES = "edges"


class EventType(StrEnum):
    UPSERT_VECTOR = "upsert_memory_vector"
    DELETE_VECTOR = "delete_memory_vector"
    UPSERT_NODE = "upsert_memory_graph_node"
    DELETE_NODE = "delete_memory_graph_node"
    UPSERT_EDGES = "upsert_memory_graph_edges"
    DELETE_EDGES = "delete_memory_graph_edges"
    INVALIDATE_CACHE = "invalidate_ltm_cache"


@dataclass(frozen=True, slots=True)
class Event:
    """A claimed outbox row."""

    id: int
    event_id: UUID
    memory_id: int
    tenant: str
    user_id: str
    version: int
    event_type: str
    family: Family
    target: Target
    payload: Mapping[str, Any]
    attempts: int
    created_at: datetime
    claim_token: UUID
    suspect: bool = False
    repair: bool = False
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """A live outgoing relation of a memory."""

    source_id: int
    target_id: int
    type: str
    version: int
    relation_hash: str


@dataclass(frozen=True, slots=True)
class Truth:
    """The present state of one memory in PostgreSQL, as far as a target needs it.

    `live` is False for tombstoned, expired and absent rows; then only memory_id and version (0 when absent) count.
    `edges` is None unless the event's family is edges. `text` is the content's first `TEXT_CHARACTERS` characters.
    """

    memory_id: int
    live: bool
    version: int
    tenant: str = ""
    user_id: str = ""
    content_hash: str = ""
    importance: float | None = None
    category: str | None = None
    tags: Sequence[str] | None = None
    slot_hint: str | None = None
    expires_at: datetime | None = None
    metadata: Mapping[str, Any] | None = None
    text: str | None = None
    text_hash: bytes | None = None
    edges_version: int = 0
    edges: Sequence[Edge] | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One event with the truth that is to be projected for it."""

    event: Event
    truth: Truth


class Verdict(StrEnum):
    """What became of one task at the target (seed `002` section 9)."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    """The target already held this version and hash."""
    CONFLICT = "conflict"
    """The target held this version with another hash: overwritten from the truth; counted and logged."""
    AHEAD = "ahead"
    """The target held a newer version than the truth (a restored database): overwritten only for a repair event."""


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: Verdict
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """Which parts of the truth a target reads; the worker's SELECT fetches no more."""

    fields: bool = True
    metadata: bool = False
    text: bool = False


class TaskFailed(Exception):  # noqa: N818 - names what happened to one task
    """A target refuses one task for good reason (a value it cannot hold). `reason` is safe to store and show."""

    def __init__(self, memory_id: int, reason: str) -> None:
        super().__init__(reason)
        self.memory_id = memory_id
        self.reason = reason


class ProjectionTarget(Protocol):
    """A projection that outbox workers keep equal to the truth.

    `project` applies a batch of tasks (each memory at most once) and returns one outcome per task, in order. It is
    idempotent and returns only when a strong read would show the result. It raises `TaskFailed` when one task is the
    culprit, `TargetUnavailable` when the target cannot be reached, any other exception for what it cannot tell apart.
    """

    @property
    def name(self) -> Target: ...
    @property
    def needs(self) -> Needs: ...
    async def start(self) -> None:
        """Connect, check ownership (`IdentityError`), create what is missing. Idempotent."""
        ...

    async def close(self) -> None: ...
    async def healthy(self) -> bool:
        """A cheap call that tells whether the target answers; never raises."""
        ...

    async def project(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[Outcome]: ...
    async def settled(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[bool]:
        """Strong read: for each task, does the target already hold exactly its truth? Used after a timed-out call."""
        ...


@dataclass(slots=True)
class BatchReport:
    """What a worker reports for one batch, to logs and metrics."""

    target: Target
    claimed: int = 0
    processed: int = 0
    retried: int = 0
    dead: int = 0
    lost: int = 0
    verdicts: dict[Verdict, int] = field(default_factory=dict)
