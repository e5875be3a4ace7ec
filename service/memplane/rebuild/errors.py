"""Errors of rebuilds.

MemplaneError
├── RebuildRefused    it cannot begin: another one runs, or the settings do not fit the one that is unfinished
├── RebuildLost       another process has taken this one up, or it was aborted: this process must end
└── RebuildFailed     it stopped on its own; running it again goes on where it stopped
"""

from __future__ import annotations

from memplane.errors import MemplaneError


class RebuildRefused(MemplaneError):  # noqa: N818 - reads as what happened
    """The rebuild cannot begin now. The message says why, and what to do."""


class RebuildLost(MemplaneError):  # noqa: N818 - reads as what happened
    """This process does not hold the rebuild any more."""

    def __init__(self, run_id: int) -> None:
        super().__init__(f"Rebuild {run_id} was aborted, or another process has taken it up")


class RebuildFailed(MemplaneError):  # noqa: N818 - reads as what happened
    """The rebuild stopped. What it has done is recorded, and running it again goes on from there."""
