"""What a backend does by the clock: comparison, purge, consolidation. Source: design sections 7 and 9."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from memplane_operator.api.model import Model, PluginName, Rule
from memplane_operator.api.model import rules as cel

CRON = "(@(hourly|daily|weekly|monthly)|([^ ]+ ){4}[^ ]+)"
Schedule = Annotated[str, Field(min_length=1, max_length=128)]
TimeZone = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")]
DAY = 86_400


def cron_rule(field: str, example: str, *, optional: bool = False) -> tuple[str, str]:
    """The CEL rule of a schedule field; an optional one may be empty."""
    pattern = f"^{CRON}?$" if optional else f"^{CRON}$"
    return (
        f"self.{field}.matches('{pattern}')",
        f"{field} must be a cron expression of five fields such as '{example}', or @hourly, @daily, @weekly, @monthly"
        + (", or empty for none" if optional else ""),
    )


class Purge(Model):
    """Removal for good of what is over: deleted memories that no projection holds, old runs, old audit entries."""

    schedule: Schedule = Field("47 4 * * *", description="Cron schedule, in the reconciler's time zone.")
    retention_seconds: int = Field(
        30 * DAY, ge=DAY, le=3650 * DAY, description="Seconds that a deleted memory is kept at least, as a tombstone."
    )
    full_interval_seconds: int = Field(
        7 * DAY,
        ge=3600,
        le=365 * DAY,
        description="Longest time in seconds between two full comparisons, as fullSchedule gives it.",
    )
    runs_retention_seconds: int = Field(
        90 * DAY, ge=0, le=3650 * DAY, description="Seconds that records of ended comparisons are kept."
    )
    audit_retention_seconds: int = Field(
        365 * DAY,
        ge=0,
        le=3650 * DAY,
        description="Seconds that it is kept which memory superseded which, once both are purged.",
    )
    cel_rules: tuple[Rule, ...] = cel(
        cron_rule("schedule", "47 4 * * *"),
        (
            f"self.retentionSeconds >= self.fullIntervalSeconds + {5 * DAY}",
            "retentionSeconds must exceed fullIntervalSeconds by at least five days (432000): a tombstone has to"
            " outlive every retry and the next full comparison",
        ),
    )


class Reconciler(Model):
    """Periodic comparison of truth and projections."""

    mode: Literal["Audit", "Repair"] = Field(
        "Repair",
        description=(
            "Repair converges what differs through the outbox; Audit only reports it. A target in Shadow mode is "
            "always audited."
        ),
    )
    full_schedule: Schedule = Field("17 3 * * *", description="Cron schedule of the full comparison.")
    incremental_schedule: str = Field(
        "*/15 * * * *",
        max_length=128,
        description="Cron schedule of the comparison of what changed since the last one; empty for none.",
    )
    time_zone: TimeZone = Field("Etc/UTC", description="Time zone of the schedules.")
    deadline_seconds: int = Field(14_400, ge=60, le=604_800, description="Seconds after which a run is ended.")
    purge: Purge | None = Field(
        None, description="Scheduled removal of what is over; none when left out, {} for the defaults."
    )
    cel_rules: tuple[Rule, ...] = cel(
        cron_rule("fullSchedule", "17 3 * * *"),
        cron_rule("incrementalSchedule", "*/15 * * * *", optional=True),
    )


class MergePolicy(Model):
    """How the memories of one scope are merged beyond the built-in rules."""

    plugin: PluginName = Field("keep", description="Merge policy: keep (merges nothing), or one of your own.")
    options: dict[str, Any] | None = Field(None, description="The policy's own document.")


class Consolidation(Model):
    """Scheduled merging, decay and expiry of memories."""

    schedule: Schedule = Field("37 2 * * *", description="Cron schedule.")
    time_zone: TimeZone = Field("Etc/UTC", description="Time zone of the schedule.")
    deadline_seconds: int = Field(14_400, ge=60, le=604_800, description="Seconds after which a run is ended.")
    mode: Literal["Apply", "Plan"] = Field(
        "Apply", description="Apply changes memories; Plan only logs what it would do."
    )
    rules: list[Literal["exact", "near", "decay", "expiry", "policy"]] = Field(
        min_length=1,
        max_length=5,
        description=(
            "What is done: exact merges equal contents, near merges near duplicates by their stored embeddings, "
            "decay lowers the importance of unchanged memories, expiry deletes what has expired, policy asks the merge "
            "policy."
        ),
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    near_threshold: float = Field(
        0.97, ge=0.5, le=1, description="Cosine of two stored embeddings from which memories are near duplicates."
    )
    half_life_seconds: int = Field(
        30 * DAY, ge=60, le=3650 * DAY, description="Seconds in which the importance of an unchanged memory halves."
    )
    policy: MergePolicy = Field(default_factory=MergePolicy, description="The merge policy of rule policy.")
    cel_rules: tuple[Rule, ...] = cel(cron_rule("schedule", "37 2 * * *"))
