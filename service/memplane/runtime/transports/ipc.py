"""Calls between processes of one machine over a Unix socket. Source: behaviours H-10, H-11, H-13.

Frames: four bytes of length (big-endian), then that many bytes of JSON. A request frame is an invocation
(`envelope.py`); an answer frame is `{invocationId, payload}` or `{invocationId, error}`. Many calls share one
connection and are answered in any order.

No token: the socket belongs to its user alone (mode 0600, and the peer's user id is checked where the system tells).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memplane.runtime.envelope import InvalidInvocation, check_answer
from memplane.runtime.errors import DefinitionError, RuntimeClosed, TransportError, TransportTimeout
from memplane.runtime.transports.http_app import Receiver
from memplane.runtime.transports.protocol import (
    DEFAULT_MAX_BODY_BYTES,
    DEFAULT_TIMEOUT_MS,
    check_id,
    check_size,
    check_timeout,
    decode,
    encode,
)
from memplane.runtime.waiting import abortable, settle
from memplane.signal import Signal

logger = logging.getLogger(__name__)

LENGTH = struct.Struct(">I")
CALLS_PER_CONNECTION = 256
"""Calls of one connection that are answered at a time; more wait in the socket."""
FRAME_SECONDS = 30.0
"""Longest time from the first to the last byte of a frame."""


class FrameError(Exception):
    """The other side does not speak in frames of at most the agreed size."""


async def read_frame(reader: asyncio.StreamReader, max_bytes: int) -> bytes | None:
    """The next frame's body; None at a clean end. Raises `FrameError`."""
    try:
        head = await reader.readexactly(1)
    except asyncio.IncompleteReadError:
        return None
    try:
        async with asyncio.timeout(FRAME_SECONDS):
            (length,) = LENGTH.unpack(head + await reader.readexactly(LENGTH.size - 1))
            if not 0 < length <= max_bytes:
                raise FrameError
            return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, TimeoutError):
        raise FrameError from None


async def write_frame(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Write a frame; frames of several tasks do not mix, because each is one write."""
    writer.write(LENGTH.pack(len(body)) + body)
    await writer.drain()


class IpcTransport:
    """Calls workers of another process of this machine. `path` is the socket that `serve_ipc` listens on.

    One connection, made with the first call and again after it was lost. Close it after the runtimes that use it.
    """

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - public name
        path: str | os.PathLike[str],
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    ) -> None:
        self.id = check_id(id)
        self._path = os.fspath(path)
        self._seconds = check_timeout(timeout_ms)
        self._max_body_bytes = check_size("max_body_bytes", max_body_bytes)
        self._waiting: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._connecting = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    async def invoke(self, envelope: Mapping[str, Any], signal: Signal | None = None) -> Mapping[str, Any]:
        """Send an invocation and return its answer. Raises like `HttpTransport.invoke`."""
        body = encode(envelope)
        if len(body) > self._max_body_bytes:
            raise TransportError("Worker request is too large")
        return await abortable(self._call(body, envelope["id"]), signal)

    async def close(self) -> None:
        """Refuse all outstanding and later calls, and end the connection. Idempotent."""
        self._closed = True
        self._fail_waiting(RuntimeClosed, "IPC transport is closed")
        reading, self._reading = self._reading, None
        if reading is not None:
            await settle({reading}, cancel=True)
        await self._drop_connection()

    async def _call(self, body: bytes, invocation_id: str) -> Mapping[str, Any]:
        self._check_open()
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        if invocation_id in self._waiting:
            raise TransportError("Invocation is already under way")
        self._waiting[invocation_id] = answer
        try:
            async with asyncio.timeout(self._seconds):
                writer = await self._connection()
                await write_frame(writer, body)
                document = await answer
        except TimeoutError:
            raise TransportTimeout("Worker request timed out") from None
        except OSError:
            self._check_open()
            raise TransportError("Worker request failed") from None
        finally:
            self._waiting.pop(invocation_id, None)
        if "error" in document:
            raise TransportError("Worker invocation failed")
        check_answer(document, invocation_id)
        return document

    async def _connection(self) -> asyncio.StreamWriter:
        async with self._connecting:
            self._check_open()
            if self._writer is None or self._writer.is_closing():
                await self._drop_connection()
                reader, self._writer = await asyncio.open_unix_connection(self._path)
                self._reading = asyncio.get_running_loop().create_task(self._read(reader, self._writer))
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (body := await read_frame(reader, self._max_body_bytes)) is not None:
                document = decode(body)
                answer = self._waiting.get(str(document.get("invocationId"))) if isinstance(document, dict) else None
                if answer is not None and not answer.done():
                    answer.set_result(document)
        except (OSError, FrameError, ValueError):
            pass  # the other side broke off or broke the protocol: the connection ends either way
        finally:
            writer.close()
            self._fail_waiting(TransportError, "Worker connection was lost")

    async def _drop_connection(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _fail_waiting(self, error: type[Exception], message: str) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error(message))

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeClosed("IPC transport is closed")


class IpcServer:
    """A running server on a Unix socket."""

    def __init__(self, receiver: Receiver, path: Path, max_body_bytes: int) -> None:
        self.path = path
        self._receiver, self._max_body_bytes = receiver, max_body_bytes
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._serve, sock=listening)

    async def close(self) -> None:
        """Take no more connections, answer what is running, remove the socket. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        await settle(self._connections, cancel=True)
        await server.wait_closed()
        self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        calls: set[asyncio.Task[None]] = set()
        try:
            if _same_user(writer):
                await self._answer_frames(reader, writer, calls)
        except FrameError:
            logger.warning("an IPC connection was ended: it sent no valid frame")
        except asyncio.CancelledError:
            pass  # close(): the calls below are still answered
        finally:
            self._connections.discard(task)
            await settle(calls, cancel=False)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer_frames(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, calls: set[asyncio.Task[None]]
    ) -> None:
        while (body := await read_frame(reader, self._max_body_bytes)) is not None:
            call = asyncio.get_running_loop().create_task(self._answer(body, writer))
            calls.add(call)
            call.add_done_callback(calls.discard)
            while len(calls) >= CALLS_PER_CONNECTION:
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)

    async def _answer(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        invocation_id: object = None
        try:
            document = decode(body)
        except ValueError:
            document = None
        try:
            invocation_id = document.get("id") if isinstance(document, Mapping) else None
            answer = encode(await self._receiver.receive(document))
            if len(answer) > self._max_body_bytes:
                answer = encode({"invocationId": invocation_id, "error": "Response too large"})
        except InvalidInvocation:
            answer = encode({"invocationId": invocation_id, "error": "Invalid invocation"})
        except Exception as error:  # noqa: BLE001 - an endpoint's last resort
            # Handlers raise anything; the other process learns that it failed and nothing else.
            logger.warning("remote invocation failed: %s", type(error).__name__)
            answer = encode({"invocationId": invocation_id, "error": "Worker invocation failed"})
        with contextlib.suppress(OSError):  # the caller has gone
            await write_frame(writer, answer)


async def serve_ipc(
    receiver: Receiver, *, path: str | os.PathLike[str], max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
) -> IpcServer:
    """Serve a runtime on a Unix socket that only this user can open. A stale socket file is replaced.

    Raises `DefinitionError` when the path is another kind of file or another server listens there, `OSError`.
    """
    check_size("max_body_bytes", max_body_bytes)
    place = Path(path)
    _clear_stale(place)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file is made with mode 0600 before anybody can connect: nothing listens yet.
        listening.bind(os.fspath(place))
        os.chmod(os.fspath(place), 0o600)
        server = IpcServer(receiver, place, max_body_bytes)
        await server.start(listening)
    except BaseException:
        listening.close()
        raise
    return server


def _clear_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise DefinitionError("The IPC path exists and is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise DefinitionError("Another server listens on the IPC path")


def _same_user(writer: asyncio.StreamWriter) -> bool:
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True  # the system does not tell; the file's mode still holds
    credentials = struct.Struct("3i")
    _, user, _ = credentials.unpack(
        writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, option, credentials.size)
    )
    return user in {0, os.getuid()}
