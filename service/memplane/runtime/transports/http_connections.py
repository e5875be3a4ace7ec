"""One server connection that cannot be held for nothing. Needs uvicorn (extra `http`).

uvicorn times out an idle connection only after an answer. Here a connection also ends when it does not complete the
head of a request in time, does not read its answer, or is the oldest idle one while too many are open.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from memplane.runtime.transports.http_app import response_headers

HEAD_SECONDS = 10.0
"""Longest time from the first byte (or the connection) to the end of a request's head."""
WRITE_SECONDS = 30.0
"""Longest time that a client may leave an answer unread."""
MAX_CONNECTIONS = 1000
"""Connections kept open; one more ends the oldest idle one."""
HEAD_BYTES = 32 * 1024
"""Largest head of a request."""


class BoundedConnection(H11Protocol):
    """uvicorn's HTTP/1.1 connection with limits on idleness."""

    head_seconds = HEAD_SECONDS
    write_seconds = WRITE_SECONDS
    max_connections = MAX_CONNECTIONS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()
        if len(self.connections) > self.max_connections:
            self._end_oldest_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()
        self._watch_head()
        if self.transport.is_closing():
            self._watch_write()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_write()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """Garbage gets the protocol's own kind of answer, where one can still be sent."""
        body = b'{"error":"Bad request"}'
        try:
            head = h11.Response(status_code=400, headers=response_headers(len(body), close=True), reason=b"Bad Request")
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # an answer is already under way on this connection
        self.transport.close()

    @property
    def idle(self) -> bool:
        """No request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _watch_head(self) -> None:
        if not self.idle:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._head_overdue)

    def _head_overdue(self) -> None:
        self._head_timer = None
        if self.idle:
            self.transport.abort()

    def _watch_write(self) -> None:
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.write_seconds, self.transport.abort)

    def _end_oldest_idle(self) -> None:
        idle = [c for c in self.connections if isinstance(c, BoundedConnection) and c.idle and c is not self]
        if idle:
            min(idle, key=lambda connection: connection._idle_since).transport.abort()
        else:
            self.transport.abort()
