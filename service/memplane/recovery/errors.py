"""What recovery raises.

RecoveryError             a rule of the task document or of a flow was broken; the message is safe to show
└── JobBusy               another process runs the job: its lease has not ended
"""

from __future__ import annotations

from memplane.errors import MemplaneError


class RecoveryError(MemplaneError):
    """A rule of the task document or of a flow was broken. Its message carries no content of the task."""


class JobBusy(RecoveryError):  # noqa: N818 - names the job's state
    """Another process holds the job's lease, or ours was lost."""
