"""Conditions as a pure state machine: the old list and the new findings in, the new list out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

ConditionStatus = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the operator has found out about one condition. The message tells a person what to do."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""


def merge(
    old: Iterable[Mapping[str, Any]], findings: Iterable[Finding], *, generation: int, now: str
) -> list[dict[str, Any]]:
    """The conditions to report, sorted by type; the transition time moves only when the status changes.

    A condition that no finding speaks of is dropped: it no longer applies to this backend.
    """
    before = {entry.get("type"): entry for entry in old}
    result = []
    for finding in sorted(findings, key=lambda f: f.type):
        previous = before.get(finding.type)
        changed = previous is None or previous.get("status") != finding.status
        result.append(
            {
                "type": finding.type,
                "status": finding.status,
                "reason": finding.reason,
                "message": finding.message[:1024],
                "observedGeneration": generation,
                "lastTransitionTime": now if changed or previous is None else previous.get("lastTransitionTime", now),
            }
        )
    return result


NOT_NEEDED_FOR_READY = frozenset(
    {
        "Ready",
        "Converged",
        "AutoscalingAvailable",
        "ComparisonsSucceed",
        "PurgeSucceeds",
        "ConsolidationSucceeds",
        "Shadow",
        "Paused",
        "MilvusReachable",
        "Neo4jReachable",
    }
)
"""A backend serves without these: projections may lag or be away, and the store answers still."""


def ready(findings: Iterable[Finding]) -> Finding:
    """Ready is the first finding that keeps the backend from serving, or True."""
    for finding in findings:
        if finding.type not in NOT_NEEDED_FOR_READY and finding.status != "True":
            return Finding("Ready", "False", finding.reason, finding.message)
    return Finding("Ready", "True", "Serving", "The service answers and its schema is current")
