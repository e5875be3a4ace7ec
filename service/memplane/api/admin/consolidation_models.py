"""What the admin API and the commands say of consolidation and purge. No contents, ever: plans show field names."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from memplane.api.admin.models import Model
from memplane.api.auth.identity import NAME_RULE, valid_name
from memplane.consolidation import Chain, Plan, Report, Superseded, Update
from memplane.purge import Report as PurgeReport
from memplane.settings import Rule


def _name(value: str) -> str:
    if not valid_name(value):
        raise ValueError(f"must be {NAME_RULE}")
    return value


Name = Annotated[str, AfterValidator(_name)]


class Scoped(Model):
    """Whose memories, and what is to be done with them."""

    tenant: Name | None = Field(None, description="needed with the role platform; else it is the credential's own")
    user: Name
    rules: list[Rule] = Field([], max_length=8, description="instead of those of the settings")
    after: int | None = Field(None, ge=-(2**63), le=2**63 - 1, description="`nextAfter` of the plan before")


class PlannedUpdate(Model):
    memory_id: str
    expected_version: int
    reason: str
    changes: list[str] = Field(description="metadata fields that it will hold, and `content` if that changes")


class PlannedDelete(Model):
    memory_id: str
    expected_version: int
    rule: Rule
    reason: str
    superseded_by: str | None = None


class PlannedStep(Model):
    """Changes that are made together or not at all."""

    updates: list[PlannedUpdate]
    deletes: list[PlannedDelete]


class SkippedGroup(Model):
    memory_ids: list[str]
    reason: str


class ConsolidationPlan(Model):
    """What consolidation would do in one window of a scope."""

    tenant: str
    user: str
    taken_at: datetime
    looked_at: int = Field(description="memories that were read")
    steps: list[PlannedStep]
    skipped: list[SkippedGroup] = Field(description="groups that were found and are not merged")
    next_after: int | None = Field(None, description="give it as `after` to plan the next window")


def plan_model(plan: Plan, following: int | None) -> ConsolidationPlan:
    """A plan as the API shows it."""
    return ConsolidationPlan(
        tenant=plan.scope.tenant,
        user=plan.scope.user,
        taken_at=plan.taken_at,
        looked_at=plan.looked_at,
        steps=[
            PlannedStep(
                updates=[
                    PlannedUpdate(
                        memory_id=str(one.memory_id),
                        expected_version=one.expected_version,
                        reason=one.reason,
                        changes=_changes(one),
                    )
                    for one in step.updates
                ],
                deletes=[
                    PlannedDelete(
                        memory_id=str(one.memory_id),
                        expected_version=one.expected_version,
                        rule=one.rule,
                        reason=one.reason,
                        superseded_by=None if one.superseded_by is None else str(one.superseded_by),
                    )
                    for one in step.deletes
                ],
            )
            for step in plan.steps
        ],
        skipped=[
            SkippedGroup(memory_ids=[str(memory_id) for memory_id in one.memory_ids], reason=one.reason)
            for one in plan.skipped
        ],
        next_after=following,
    )


def _changes(update: Update) -> list[str]:
    fields = sorted(update.metadata) if update.metadata is not None else []
    return [*fields, "content"] if update.content is not None else fields


class Consolidated(Model):
    """What a consolidation did."""

    scopes: int
    looked_at: int
    updated: int
    superseded: int
    expired: int
    conflicts: int = Field(description="plans that were overtaken by other changes and made again")
    unfinished: int = Field(description="windows that were given up after too many conflicts")
    skipped: int
    cancelled: bool = Field(description="it ran out of time or was ended: ask again")
    by_rule: dict[str, int] = Field(description="memories by what was done with them")
    next_after: int | None = Field(None, description="give it as `after` to consolidate the next window")


def report_model(report: Report) -> Consolidated:
    """What a consolidation did, as the API shows it."""
    fields = {name: getattr(report, name) for name in Consolidated.model_fields if name != "next_after"}
    return Consolidated(**fields, next_after=report.following)


class SupersedesEntry(Model):
    superseded_id: str
    survivor_id: str
    user_id: str
    rule: str
    reason: str
    superseded_version: int = Field(description="the version that was merged")
    survivor_version: int = Field(description="the survivor's version after the merge")
    created_at: datetime


class SupersedesChain(Model):
    """Which memory took the place of which."""

    memory_id: str
    superseded_by: list[SupersedesEntry] = Field(description="from this memory up to the one that stands today")
    supersedes: list[SupersedesEntry] = Field(description="all that was merged into it, oldest first, 1,000 at most")


def chain_model(memory_id: int, chain: Chain) -> SupersedesChain:
    """A chain as the API shows it."""
    return SupersedesChain(
        memory_id=str(memory_id),
        superseded_by=[_entry(one) for one in chain.superseded_by],
        supersedes=[_entry(one) for one in chain.supersedes],
    )


def _entry(one: Superseded) -> SupersedesEntry:
    return SupersedesEntry(
        superseded_id=str(one.superseded_id),
        survivor_id=str(one.survivor_id),
        user_id=one.user_id,
        rule=one.rule,
        reason=one.reason,
        superseded_version=one.superseded_version,
        survivor_version=one.survivor_version,
        created_at=one.created_at,
    )


class Purged(Model):
    """What a purge removed, and what it left."""

    dry_run: bool
    cancelled: bool = Field(description="it ran out of time or was ended: ask again")
    removed: dict[str, int] = Field(
        description="rows by kind: tombstones, edges, embeddings, events, runs, supersedes entries"
    )
    tombstones: dict[str, int] = Field(
        description="tombstones that were looked at, by what they wait for; `ready` ones were removed, "
        "a dry run looks at all of them, a purge stops at the first that is retained"
    )


def purge_model(report: PurgeReport) -> Purged:
    """What a purge did, as the API shows it."""
    return Purged(
        dry_run=report.dry_run,
        cancelled=report.cancelled,
        removed=report.removed,
        tombstones={str(verdict): count for verdict, count in report.tombstones.items()},
    )
