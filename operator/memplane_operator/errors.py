"""What the operator raises.

OperatorError
├── ApiError          the API server refused or did not answer a request (status code and its reason, no body)
│   ├── NotFound      404
│   └── Conflict      409: somebody changed the object meanwhile
└── Waiting           a person or another controller has to act first; becomes a condition
"""

from __future__ import annotations


class OperatorError(Exception):
    """Root of the operator's own errors."""


class ApiError(OperatorError):
    """A request to the API server failed. `status` is 0 when it did not answer."""

    def __init__(self, status: int, what: str, message: str = "") -> None:
        super().__init__(f"{what}: HTTP {status} {message}".rstrip())
        self.status = status
        self.message = message


class NotFound(ApiError):  # noqa: N818 - the field's name for it
    """The object does not exist."""


class Conflict(ApiError):  # noqa: N818 - the field's name for it
    """The object was changed meanwhile."""


class Waiting(OperatorError):  # noqa: N818 - names a state
    """Reconciliation cannot go on until something outside happens."""

    def __init__(self, condition: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.condition = condition
        self.reason = reason
        self.message = message
