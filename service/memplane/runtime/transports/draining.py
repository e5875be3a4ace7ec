"""Reading on after an answer that came before the whole request, so that the client gets to see it.

Closing a connection with unread input resets it, and a client that still sends loses the answer with the reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

DRAIN_SECONDS = 2.0
DRAIN_BYTES = 8 * 2**20
"""For how long, and how much of what is still sent is read and dropped."""


async def end_unread(receive: Receive, send: Send) -> None:
    """After a body part sent with `more_body`: drop what the client still sends, for a while, and end the answer."""
    await _drain(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive) -> None:
    dropped = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while dropped < DRAIN_BYTES:
                message = await receive()
                dropped += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
    except TimeoutError:
        return
