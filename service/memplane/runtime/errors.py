"""What the runtime raises.

    MemplaneError
    ├── DefinitionError      a worker, graph, loop, transport or registration is described wrongly (also a ValueError)
    ├── NoWorkerAvailable    no registered worker can take the call now
    ├── RuntimeClosed        the runtime, transport or event fabric no longer accepts work
    ├── TransportError       a remote call failed; carries no text of the other side
    │   └── TransportTimeout no answer within the transport's time
    ├── ArtifactError        a payload reference cannot be resolved
    ├── CheckpointError      a checkpoint cannot be written or does not fit what is resumed
    ├── LoopLimitReached     a loop used all its iterations without being done
    └── PermissionDenied     the sandbox policy does not allow it (also a PermissionError)

Errors of handlers, binds and callbacks pass through unchanged; an aborted `Signal` raises its own reason.
"""

from __future__ import annotations

from memplane.errors import MemplaneError


class DefinitionError(MemplaneError, ValueError):
    """A worker, graph, loop, transport or registration is described wrongly."""


class NoWorkerAvailable(MemplaneError):  # noqa: N818 - public name, fixed by the design
    """No worker implements the node, or every one that does is unavailable or full. There is no queue."""

    def __init__(self, node: str) -> None:
        super().__init__(f"No available Worker implements {node}")
        self.node = node


class RuntimeClosed(MemplaneError):  # noqa: N818 - reads as the state it reports
    """What was called has been closed, or is draining and takes no new work."""


class TransportError(MemplaneError):
    """A remote call failed. The message never carries text of the other side."""


class TransportTimeout(TransportError):  # noqa: N818 - says what kind of transport error it is
    """The remote side did not answer in time. It may still be working: nothing was cancelled there."""


class ArtifactError(MemplaneError):
    """A payload reference cannot be stored or resolved."""


class CheckpointError(MemplaneError):
    """A checkpoint cannot be written, was altered, or belongs to something else than what is resumed."""


class LoopLimitReached(MemplaneError):  # noqa: N818 - reads as the state it reports
    """The loop ran its last allowed iteration and was not done."""


class PermissionDenied(MemplaneError, PermissionError):  # noqa: N818 - the field's name for it
    """The sandbox policy refuses it. The message names kind and subject: `Permission denied: tools:x`."""

    def __init__(self, kind: str, subject: str) -> None:
        super().__init__(f"Permission denied: {kind}:{subject}")
        self.kind = kind
        self.subject = subject
