"""Proves that a projection equals the truth, and repairs what does not, through the outbox (seed `002` section 10)."""

from memplane.reconcile.record import RunLost
from memplane.reconcile.report import Kind, Mode, Progress, Report, Sample
from memplane.reconcile.run import AlreadyRunning, reconcile
from memplane.reconcile.runs import CleanRun, forget_runs, last_clean_full_runs, named

__all__ = [
    "AlreadyRunning",
    "CleanRun",
    "Kind",
    "Mode",
    "Progress",
    "Report",
    "RunLost",
    "Sample",
    "forget_runs",
    "last_clean_full_runs",
    "named",
    "reconcile",
]
