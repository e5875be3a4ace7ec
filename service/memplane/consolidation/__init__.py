"""Merges duplicates, lets importance decay and time run out: a pure plan, then transactions (seed `002` section 7)."""

from memplane.consolidation.apply import Applied, PlanConflict, apply
from memplane.consolidation.chain import Chain, Superseded, read_chain
from memplane.consolidation.memory import Memory, Snapshot
from memplane.consolidation.plan import Delete, Plan, Skipped, Step, Update, plan
from memplane.consolidation.policy import KeepPolicy, Merged, MergePolicy
from memplane.consolidation.run import Job, Report, consolidate, make_plan, plans
from memplane.consolidation.snapshot import scopes

__all__ = [
    "Applied",
    "Chain",
    "Delete",
    "Job",
    "KeepPolicy",
    "Memory",
    "MergePolicy",
    "Merged",
    "Plan",
    "PlanConflict",
    "Report",
    "Skipped",
    "Snapshot",
    "Step",
    "Superseded",
    "Update",
    "apply",
    "consolidate",
    "make_plan",
    "plan",
    "plans",
    "read_chain",
    "scopes",
]
