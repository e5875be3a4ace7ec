"""A TCP relay on loopback that can be closed and opened again: how tests take a server away from the service alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket


class Relay:
    """Forwards connections to a server; `down()` cuts them and refuses new ones, `up()` lets them through again.

    It accepts by itself: an `asyncio.Server` that is closed in the turn in which it accepts forgets that connection,
    neither served nor closed.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener: socket.socket | None = None
        self._accepted: dict[asyncio.Task[None], socket.socket] = {}
        self.port = 0

    async def up(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    async def down(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        accepted = dict(self._accepted)
        for task in accepted:
            task.cancel()
        await asyncio.gather(*accepted, return_exceptions=True)
        for client in accepted.values():
            client.close()  # of one whose task had not begun

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        client.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self._accepted[task] = client
        task.add_done_callback(self._accepted.pop)

    async def _serve(self, client: socket.socket) -> None:
        async with contextlib.AsyncExitStack() as stack:
            reader, writer = await asyncio.open_connection(sock=client)
            stack.callback(writer.transport.abort)
            try:
                upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
            except OSError:
                return
            stack.callback(upstream_writer.transport.abort)
            await asyncio.gather(_pipe(reader, upstream_writer), _pipe(upstream_reader, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
