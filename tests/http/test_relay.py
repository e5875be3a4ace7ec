"""The relay itself: going down leaves nothing open, whatever is just being accepted."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket

import pytest

from tests.http.relay import Relay


@pytest.mark.parametrize("turns", range(8))
async def test_going_down_leaves_nothing_open_whatever_is_just_being_accepted(turns: int) -> None:
    """Turns of the loop after a client has come: it is not yet accepted, is being accepted, is being connected."""
    upstream = socket.create_server(("127.0.0.1", 0))
    relay = Relay("127.0.0.1", upstream.getsockname()[1])
    await relay.up()
    with upstream, socket.create_connection(("127.0.0.1", relay.port), timeout=5) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await relay.down()
        gc.collect()  # a transport that nobody has closed says so, which is an error here
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(client.recv, 1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", relay.port), timeout=5)
