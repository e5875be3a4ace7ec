"""Errors of projections.

    MemplaneError
    ├── TargetUnavailable      (memplane.errors) the target cannot be reached
    │   └── TargetTimeout      it did not answer in time: what was asked of it may still happen
    ├── IdentityError          (memplane.errors) a collection or graph belongs to somebody else
    ├── ProjectionRefused      the target answered and refuses the call
    └── ProjectionMissing      the collection that the active generation names is gone

None carries the driver's text: it may hold addresses, credentials and contents.
"""

from __future__ import annotations

from memplane.errors import MemplaneError, TargetUnavailable


class TargetTimeout(TargetUnavailable):
    """The target did not answer in time, so what was asked of it may have happened, or may happen yet."""


class ProjectionRefused(MemplaneError):  # noqa: N818 - reads as what happened
    """The target answered, and refuses the call. `code` is the driver's symbolic code, never its message."""

    def __init__(self, target: str, code: str) -> None:
        super().__init__(f"{target} refuses the call ({code})")
        self.target = target
        self.code = code


class ProjectionMissing(MemplaneError):  # noqa: N818 - reads as what happened
    """The collection that the active generation names does not exist on the server."""

    def __init__(self, target: str, name: str) -> None:
        super().__init__(f"{target} has no collection {name}")
        self.target = target
        self.name = name
