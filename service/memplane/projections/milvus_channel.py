"""A client of Milvus whose channel heals itself, and is closed when nobody calls through it any more.

The native code below the driver does not always survive a channel that is closed while it connects or carries a call
of another thread: the process ends with a segmentation fault. So a channel lives as long as its address and token do,
tries again soon after a failure, and is never closed under a call.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from memplane.errors import TargetUnavailable

GRPC_OPTIONS = {
    # A channel that has failed waits before it tries again, by default up to two minutes.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 1_000,
    "grpc.max_reconnect_backoff_ms": 1_000,
    # The name may lead elsewhere after a restart; by default it is asked for every 30 s at most.
    "grpc.dns_min_time_between_resolutions_ms": 1_000,
}


class MilvusChannel:
    """A `MilvusClient` that threads share. Blocking: made, used and closed in threads."""

    def __init__(self, uri: str, token: str, database: str, seconds: float) -> None:
        """Connect within `seconds`. Raises what pymilvus raises."""
        self._client = _connect(uri, token, database, seconds)
        self._credentials = (uri, token)
        self._lock = threading.Lock()
        self._calls = 0
        self._retired = False

    def opened_with(self, uri: str, token: str) -> bool:
        """Whether it was opened with this address and this token."""
        return (uri, token) == self._credentials

    @contextlib.contextmanager
    def calling(self) -> Iterator[Any]:
        """The client for one call. Raises `TargetUnavailable` when the channel takes no more calls."""
        with self._lock:
            if self._retired:
                raise TargetUnavailable("milvus", "the connection is being renewed")
            self._calls += 1
        try:
            yield self._client
        finally:
            if self._leave():
                self.close()

    def _leave(self) -> bool:
        """Count a call that has ended; whether it was the last one of a retired channel."""
        with self._lock:
            self._calls -= 1
            return self._retired and self._calls == 0

    def retire(self) -> bool:
        """Take no more calls; never blocks. The last call under way closes it, at its deadline at the latest.

        Whether there is none: then whoever asked is to `close` it.
        """
        with self._lock:
            idle = not self._retired and self._calls == 0
            self._retired = True
        return idle

    def close(self) -> None:
        """Close what nobody calls through: after `retire` has said so."""
        self._client.close()


def _connect(uri: str, token: str, database: str, seconds: float) -> Any:
    from pymilvus import MilvusClient

    # Loggers are global, so this also holds for whoever else uses pymilvus in the process.
    for logger in ("pymilvus", "pymilvus.milvus_client", "milvus_lite"):
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
    client = MilvusClient(
        uri=uri, token=token, db_name=database, timeout=seconds, dedicated=True, grpc_options=GRPC_OPTIONS
    )
    # Left alone, every call that finds the server away makes a further channel, one at a time for the whole process.
    vars(client._handler).pop("_on_rpc_error", None)
    return client
