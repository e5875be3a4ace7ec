"""Proves that a projection equals the truth, and repairs what does not, through the outbox (seed `002` section 10)."""

from memplane.reconcile.report import Kind, Mode, Progress, Report, Sample
from memplane.reconcile.run import reconcile

__all__ = ["Kind", "Mode", "Progress", "Report", "Sample", "reconcile"]
