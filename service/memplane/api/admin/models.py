"""What the admin API answers. Names are the wire's (`lagSeconds`); times are ISO 8601 in UTC. No contents, ever."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from memplane.contracts import JSON
from memplane.outbox.admin import EventRecord

TargetName = Literal["milvus", "neo4j", "ltm_cache"]
EventStatus = Literal["pending", "processing", "processed", "dead"]


class Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, from_attributes=True, extra="forbid")


class OutboxEvent(Model):
    """One row of the outbox."""

    id: int
    event_id: UUID
    memory_id: str
    tenant: str
    user_id: str
    version: int
    event_type: str
    family: Literal["node", "edges"]
    target: TargetName
    status: EventStatus
    attempts: int
    available_at: datetime
    created_at: datetime
    processed_at: datetime | None = None
    locked_by: str | None = Field(None, description="the worker that holds it")
    locked_until: datetime | None = None
    superseded_by: int | None = Field(None, description="the newer event that took its place")
    shadow: bool = Field(False, description="processed in Shadow mode: compared, not written")
    repair: bool = Field(False, description="made by the reconciler")
    last_error: str | None = None


def event_model(record: EventRecord) -> OutboxEvent:
    """An outbox row as the API shows it."""
    fields = {name: getattr(record, name) for name in OutboxEvent.model_fields if name not in ("memory_id", "repair")}
    return OutboxEvent(memory_id=str(record.memory_id), repair=record.repair_key is not None, **fields)


class OutboxPage(Model):
    events: list[OutboxEvent]
    next_before: int | None = Field(None, description="give it as `before` to get the next page")


class EventIds(Model):
    ids: list[Annotated[int, Field(ge=1, le=2**63 - 1)]] = Field(
        min_length=1, max_length=1000, description="ids of dead events"
    )


class Changed(Model):
    ids: list[int] = Field(description="the events that changed; others were not dead, or not yours")


class ProjectionState(Model):
    """What PostgreSQL knows about one memory in one target."""

    target: TargetName
    family: Literal["node", "edges"]
    projected_version: int | None = Field(None, description="version of the newest event that was projected")
    unfinished: int = Field(description="events that are pending or in flight")
    dead: int


class MemoryState(Model):
    """One memory as PostgreSQL has it, tombstones included, without its content."""

    memory_id: str
    memory: dict[str, JSON] | None = Field(description="the row by its columns; null: only its events are left")
    edges: list[dict[str, JSON]] = Field(description="relations from and to it, removed ones too, by their columns")
    projections: list[ProjectionState] = Field(description="one entry per target and family that has events")
    history: list[OutboxEvent] = Field(description="its events, newest first, 200 at most")


class ReconciliationRun(Model):
    id: int
    target: str
    kind: Literal["full", "incremental"]
    mode: Literal["audit", "repair"]
    state: Literal["running", "completed", "failed", "cancelled"]
    started_at: datetime = Field(description="when it first began; a run that was taken up again keeps it")
    finished_at: datetime | None = None
    heartbeat_at: datetime | None = Field(None, description="its last sign of life")
    resumed: int = Field(0, description="how often it was taken up again after it had broken off")
    scanned: int = Field(description="live memories that were compared")
    unchecked: int = Field(0, description="vectors that could not be compared: no embedding of their text is stored")
    mismatches: dict[str, int] = Field(description="confirmed differences by kind")
    repaired: dict[str, int] = Field(description="repair events by kind of difference")
    reason: str | None = Field(None, description="why it is a full run although an incremental one was asked for")
    error: str | None = None


class Finding(Model):
    """A memory that a run names."""

    memory_id: str
    type: str = Field(description="kind of difference, or `unsettled`: dead, and its event on the way")
    detail: str = ""


class ReconciliationRunDetail(ReconciliationRun):
    samples: list[Finding] = Field(description="the first hundred differences")
    findings: list[Finding] = Field(
        description="the memories it names by id: every dead one, and the first ten thousand of the living"
    )


class ReconciliationRuns(Model):
    runs: list[ReconciliationRun]


class Drift(Model):
    """Differences that the newest finished full run of each target found."""

    targets: dict[str, ReconciliationRun | None]


class TargetStatus(Model):
    enabled: bool
    mode: Literal["Live", "Shadow"]
    reachable: bool | None = Field(None, description="null: not asked yet, or it is the service itself")
    detail: str = ""
    backlog: int = Field(description="events pending or in flight")
    lag_seconds: float = Field(description="age of the oldest unfinished event, 0 without one")
    dead: int
    drift: int | None = Field(None, description="differences of the newest finished full run; null without a run")
    last_full_run: ReconciliationRun | None = Field(None, description="the newest finished full run")
    last_incremental_run: ReconciliationRun | None = Field(None, description="the newest finished incremental run")


class Dependency(Model):
    ok: bool
    detail: str = ""


class Status(Model):
    """What the operator needs to know (design section 9)."""

    version: str = Field(description="release of the service")
    schema_version: int | None = Field(None, description="number of the newest migration; null while unknown")
    backend_id: UUID | None = None
    ready: bool
    store: Dependency
    targets: dict[str, TargetStatus]
