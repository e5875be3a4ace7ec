"""One packet for an answer: its head, body and end are written by three calls and leave in one.

Each write to a socket is a system call that wakes the client; a client woken by the head alone waits for the body.
"""

from __future__ import annotations

import asyncio
from typing import Any

FLUSH_BYTES = 64 * 1024
"""More than this is not kept back, so that the transport's flow control stays in charge."""


class JoinedWrites:
    """A transport whose writes leave together: at the end of this turn of the event loop, or by `flush`.

    Everything but writing and closing is the transport's own.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand over what was kept back."""
        if self._parts:
            parts, self._parts, self._size = self._parts, [], 0
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:  # whatever the transport has
        return getattr(self._transport, name)
