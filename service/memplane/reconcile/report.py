"""What a run says: while it works, and at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from memplane.outbox.events import Target

Mode: TypeAlias = Literal["audit", "repair"]
"""Audit reports; repair also inserts repair events."""

Kind: TypeAlias = Literal["full", "incremental"]
"""Which memories a run looks at: all, or those that have changed since an earlier run."""

State: TypeAlias = Literal["running", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One confirmed mismatch, for a person to look at."""

    memory_id: int
    type: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """`position`: everything up to this memory id is compared. `total`: memories to compare, an estimate."""

    position: int
    scanned: int
    total: int
    mismatches: int


ProgressCallback: TypeAlias = Callable[[Progress], None]


@dataclass(slots=True)
class Report:
    """The outcome of a run. `mismatches` and `repaired` count by type (see `diff.Drift`)."""

    run_id: int
    target: Target
    kind: Kind
    mode: Mode
    state: State = "running"
    scanned: int = 0
    mismatches: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    error: str | None = None
    reason: str | None = None
    """Why the run is a full one although an incremental one was asked for."""
    resumed: int = 0
    """How often the run was taken up again after it had broken off."""
    unchecked: int = 0
    """Vectors that could not be compared, as no embedding of their text is stored."""

    @property
    def clean(self) -> bool:
        """Whether the run is complete and has found no difference."""
        return self.state == "completed" and not self.mismatches

    def count(self, found: Sequence[Sample], keep: int) -> None:
        """Add mismatches; the first `keep` of the run are kept as samples."""
        for sample in found:
            self.mismatches[sample.type] = self.mismatches.get(sample.type, 0) + 1
        self.samples.extend(found[: max(0, keep - len(self.samples))])

    def add_repaired(self, kind: str, count: int) -> None:
        if count:
            self.repaired[kind] = self.repaired.get(kind, 0) + count
