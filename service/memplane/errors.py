"""What memplane raises.

    MemplaneError
    ├── PluginError          a plugin's public error: its message may be shown to any caller
    ├── RetrievalError       a public error of the RETRIEVAL side: embeddings, retrieval providers, bridges
    ├── NodeFailed           NodeResult.unwrap() on a result that is not a success
    ├── SettingsError        a setting that cannot work; names the setting and the limit
    ├── SchemaError          the database's schema does not fit this release
    ├── IdentityError        the database or a projection belongs to another backend
    └── TargetUnavailable    a projection target cannot be reached (its message carries no driver text)

Errors that are part of the node contract never escape from nodes as exceptions: they become a `NodeResult`.
Driver exceptions are translated at the edge where they occur; their text goes neither to callers nor to logs.
"""

from __future__ import annotations


class MemplaneError(Exception):
    """Root of every error that memplane raises on purpose."""


class PluginError(MemplaneError):
    """A plugin's public error. The seeds call it MemoryError; Python's own `MemoryError` means out of memory.

    `code` is machine readable (`CONFLICT`, `NOT_FOUND`, `UNSUPPORTED_FILTER` …); `safe_message` is shown to callers
    verbatim, so it must hold no secret and no driver text.
    """

    def __init__(self, code: str, safe_message: str) -> None:
        super().__init__(f"{code}: {safe_message}")
        self.code = code
        self.safe_message = safe_message


class RetrievalError(MemplaneError):
    """A public error of RETRIEVAL (codes `RETRIEVAL_…`). Its message is safe to show.

    It is no `PluginError`: behind MEMORY.SEARCH it becomes MEMORY_BACKEND_ERROR like any other exception (case M-46).
    `outage` tells that no content is to blame: the provider is away, overloaded or refuses us, so that the same call
    may succeed later and a worker waits instead of giving up an event.
    """

    def __init__(self, code: str, message: str, *, outage: bool = False) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.outage = outage


class NodeFailed(MemplaneError):  # noqa: N818 - public name, fixed by the design
    """A node's result was not a success. `code` and `message` are those of the result's error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class SettingsError(MemplaneError):
    """A setting is missing, unknown or out of range. The message names the setting and the allowed values."""


class SchemaError(MemplaneError):
    """The database schema is absent, older than the code needs, or newer than the code can serve."""


class IdentityError(MemplaneError):
    """A database, collection or graph belongs to another backend, model or dimension than configured."""


class TargetUnavailable(MemplaneError):  # noqa: N818 - reads as the state it reports
    """A projection target did not answer. `target` names it; the cause's text is not carried."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"{target} is unavailable: {reason}")
        self.target = target
        self.reason = reason
