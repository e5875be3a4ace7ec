"""What the operator reports. No free-form parts: every field is typed. Source: design section 9."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memplane_operator.api.model import Model

ConditionType = Literal[
    "Ready",
    "Reconciled",
    "Migrated",
    "OptionsValid",
    "StoreReachable",
    "MilvusReachable",
    "Neo4jReachable",
    "WorkersHealthy",
    "Converged",
    "AutoscalingAvailable",
    "ComparisonsSucceed",
    "PurgeSucceeds",
    "ConsolidationSucceeds",
    "Shadow",
    "Paused",
]


class Condition(Model):
    """One aspect of the backend's state, in the Kubernetes convention."""

    type: ConditionType = Field(description="Which aspect.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(
        min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9]*$", description="Why, in one CamelCase word."
    )
    message: str = Field("", max_length=1024, description="Why, for a person, and what to do about it.")
    observed_generation: int = Field(0, ge=0, description="Generation of the spec that this was seen for.")
    last_transition_time: str = Field(
        json_schema_extra={"format": "date-time"}, description="When the status last changed."
    )


class Drift(Model):
    """Differences of one kind that a comparison found."""

    kind: str = Field(max_length=64, description="missing, stale, hash, orphan, ahead, or one of the edge kinds.")
    count: int = Field(ge=0, description="How many objects differ in this way.")


class LastRun(Model):
    """The last finished comparison of a target, of one kind."""

    finished_at: str = Field(json_schema_extra={"format": "date-time"}, description="When it ended.")
    state: Literal["completed", "failed", "cancelled"] = Field(description="How it ended.")
    scanned: int = Field(0, ge=0, description="Memories compared.")
    drift: list[Drift] = Field(default_factory=list, max_length=16, description="What differed, by kind.")


class TargetStatus(Model):
    """One projection target, in numbers of the service."""

    name: Literal["milvus", "neo4j"] = Field(description="The target.")
    mode: Literal["Live", "Shadow"] = Field(
        "Live", description="Shadow: changes are compared and counted, not written."
    )
    backlog: int = Field(0, ge=0, description="Events that wait.")
    lag_seconds: int = Field(0, ge=0, description="Age of the oldest event that waits, in seconds.")
    dead: int = Field(0, ge=0, description="Events that exhausted their attempts: replay or discard them.")
    drift: int = Field(0, ge=0, description="Differences found by the last full comparison.")
    replicas: int = Field(0, ge=0, description="Workers that run.")
    last_full_run: LastRun | None = Field(None, description="The last finished full comparison.")
    last_incremental_run: LastRun | None = Field(None, description="The last finished incremental comparison.")


class ScheduleStatus(Model):
    """One of the backend's CronJobs."""

    name: str = Field(max_length=63, description="full-TARGET, incremental-TARGET, purge or consolidation.")
    last_scheduled: str | None = Field(
        None, json_schema_extra={"format": "date-time"}, description="When it was started last."
    )
    last_succeeded: str | None = Field(
        None, json_schema_extra={"format": "date-time"}, description="When a run of it last ended well."
    )


class Summary(Model):
    """The worst of all targets, for `kubectl get`."""

    backlog: int = Field(0, ge=0, description="Events that wait, over all targets.")
    lag_seconds: int = Field(0, ge=0, description="Age of the oldest event that waits, in seconds.")
    dead: int = Field(0, ge=0, description="Dead events, over all targets.")
    drift: int = Field(0, ge=0, description="Differences found by the last full comparisons.")


class MemoryBackendStatus(Model):
    """The observed state of a memory backend."""

    observed_generation: int = Field(0, ge=0, description="Generation of the spec that was last acted upon.")
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="The backend's state, one entry per type.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    endpoint: str = Field("", max_length=512, description="Address of the service inside the cluster.")
    schema_version: str = Field("", max_length=64, description="Newest migration that the store has.")
    summary: Summary = Field(default_factory=Summary, description="The worst of all targets.")
    targets: list[TargetStatus] = Field(
        default_factory=list,
        max_length=8,
        description="Each projection target.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    schedules: list[ScheduleStatus] = Field(
        default_factory=list,
        max_length=8,
        description="What runs by the clock, and when it last did.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
