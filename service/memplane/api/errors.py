"""Errors that become an HTTP answer other than 200.

    HttpError                 status, code, message, extra headers
    ├── Unauthenticated       401
    ├── Forbidden             403
    └── Unavailable           503, with Retry-After

Their messages are shown to the caller: they hold no secret, no driver text and nothing of another tenant.
"""

from __future__ import annotations

from collections.abc import Mapping

from memplane.errors import MemplaneError


class HttpError(MemplaneError):
    """An answer with a status of its own and `{"error": {"code", "message"}, "requestId"}` as body."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


class Unauthenticated(HttpError):  # noqa: N818 - reads as the answer it gives
    """No credential, or one that is unknown, malformed or expired."""

    def __init__(self, message: str) -> None:
        super().__init__(401, "UNAUTHENTICATED", message, {"WWW-Authenticate": 'Bearer realm="memplane"'})


class Forbidden(HttpError):  # noqa: N818 - reads as the answer it gives
    """The credential is good and does not allow this."""

    def __init__(self, message: str) -> None:
        super().__init__(403, "FORBIDDEN", message)


class Unavailable(HttpError):  # noqa: N818 - reads as the answer it gives
    """Nothing is wrong with the request; it may be sent again after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(503, "UNAVAILABLE", message, {"Retry-After": str(retry_after)})
