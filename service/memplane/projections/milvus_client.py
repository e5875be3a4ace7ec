"""Milvus as one process sees it: a server, or a Milvus Lite file that this process alone may open.

pymilvus' asynchronous client is marked experimental and cannot iterate, so its synchronous client runs in a few
threads of its own. Every call has a deadline. Driver exceptions end here: callers see `TargetUnavailable`,
`ProjectionRefused` or `ProjectionMissing`, and pymilvus' own log lines, which print addresses and tracebacks, are off.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from memplane.errors import SettingsError, TargetUnavailable
from memplane.projections.address import Address, read_address
from memplane.projections.errors import ProjectionMissing, ProjectionRefused, TargetTimeout
from memplane.projections.milvus_channel import MilvusChannel
from memplane.projections.milvus_upsert import upsert_columns
from memplane.settings import MilvusSettings

T = TypeVar("T")

THREADS = 16
"""Calls in flight per connection; a call that hangs holds its thread until its own deadline."""

GRACE = 2.0
"""Seconds beyond a call's deadline before its thread is given up: pymilvus answers late while it reconnects."""

PROBE_SECONDS = 2.0
"""Deadline of the health call, also made before the first call after a failure, so that a dead server fails fast."""

_COLLECTION_NOT_FOUND = 100

_UNAVAILABLE = frozenset({-1, 2, 3, 4, 8, 9, 10, 101, 102, 200, 500, 501, 502, 503, 901, 902, 903, 904})
"""Codes of a server that starts, stops, recovers a collection, sheds load or cannot be reached."""


class MilvusConnection:
    """A connection that opens on first use, survives restarts of the server, and re-reads a rotated token."""

    def __init__(self, settings: MilvusSettings) -> None:
        read_address("milvus", settings.uri, settings.uri_file)
        self.settings = settings
        self._channel: MilvusChannel | None = None
        self._opening = asyncio.Lock()
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="memplane-milvus")
        self._suspect = False

    @property
    def lite(self) -> bool:
        """Whether this is a Milvus Lite file."""
        return str(self.settings.uri).endswith(".db")

    def _token(self) -> str:
        if self.settings.token_file is not None:
            try:
                return self.settings.token_file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise SettingsError(f"milvus.token_file cannot be read: {error.strerror}") from None
        if self.settings.token is not None:
            return self.settings.token.get_secret_value()
        address = self._address()
        return f"{address.user}:{address.password}" if address.user else ""

    def _address(self) -> Address:
        return read_address("milvus", self.settings.uri, self.settings.uri_file)

    async def open(self) -> None:
        """Connect. Raises `TargetUnavailable`. Idempotent."""
        await self._connected(self.settings.timeout)

    async def _connected(self, deadline: float) -> MilvusChannel:
        async with self._opening:
            if self._channel is None:
                uri, token, given_up = self._address().uri, self._token(), threading.Event()

                def connect() -> MilvusChannel:
                    channel = MilvusChannel(uri, token, self._database, deadline)
                    if given_up.is_set() and channel.retire():
                        channel.close()
                    return channel

                try:
                    self._channel = await self._in_thread(connect, deadline)
                except BaseException:
                    given_up.set()  # the thread may still connect, with nobody left to close what it opens
                    raise
            return self._channel

    async def close(self) -> None:
        """Close the channel and its threads. Idempotent; the connection cannot be opened again."""
        await self._forget()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def healthy(self) -> bool:
        """Whether the server answers a cheap call within two seconds; never raises."""
        try:
            await self._attempt("list_collections", (), {}, PROBE_SECONDS)
        except (ProjectionRefused, ProjectionMissing, SettingsError):
            return False
        except TargetUnavailable:
            with contextlib.suppress(SettingsError):
                await self._forget_if_moved()
            return False
        self._suspect = False
        return True

    async def call(self, method: str, *args: object, timeout: float | None = None, **kwargs: object) -> Any:
        """`MilvusClient.method(*args, timeout=…, **kwargs)` in a thread; `timeout` in seconds.

        An upsert that names the `kinds` of its fields is encoded by column (`upsert_columns`).

        Raises `TargetUnavailable`, `ProjectionRefused`, `ProjectionMissing`. After a failure the next call first makes
        the two-second health call, because pymilvus would go on trying until the whole deadline is used up.
        """
        deadline = self.settings.timeout if timeout is None else timeout
        if self._suspect and not await self.healthy():
            raise TargetUnavailable("milvus", "it does not answer")
        try:
            return await self._attempt(method, args, kwargs, deadline)
        except TargetUnavailable as unavailable:
            self._suspect = True
            if unavailable.reason != CREDENTIALS or (
                self.settings.token_file is None and self.settings.uri_file is None
            ):
                raise
        await self._forget()
        return await self._attempt(method, args, kwargs, deadline)

    async def _attempt(self, method: str, args: tuple[object, ...], kwargs: dict[str, Any], deadline: float) -> Any:
        channel = await self._connected(deadline)

        def attempt() -> Any:
            with channel.calling() as client:
                return self._function(client, method, kwargs)(*args, timeout=deadline, **kwargs)

        return await self._in_thread(attempt, deadline)

    def _function(self, client: Any, method: str, kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        if method == "upsert" and "kinds" in kwargs:
            return functools.partial(upsert_columns, client, database=self._database)
        function: Callable[..., Any] = getattr(client, method)
        return function

    @property
    def _database(self) -> str:
        """The database as requests name it: the default one by nothing."""
        return "" if self.settings.database == "default" else self.settings.database

    async def _forget(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and channel.retire():
            with contextlib.suppress(TargetUnavailable, ProjectionRefused):
                await self._in_thread(channel.close, PROBE_SECONDS)

    async def _forget_if_moved(self) -> None:
        """A channel comes back to its own address by itself; files may name another one by now."""
        if self._channel is not None and not self._channel.opened_with(self._address().uri, self._token()):
            await self._forget()

    async def _in_thread(self, work: Callable[[], T], deadline: float) -> T:
        loop = asyncio.get_running_loop()
        try:
            # Not `wait_for`, which takes two more turns of the loop to hand over the answer.
            async with asyncio.timeout(deadline + GRACE):
                return await loop.run_in_executor(self._threads, _translated(work))
        except TimeoutError:
            self._suspect = True
            raise TargetTimeout("milvus", f"no answer within {deadline:g} s") from None


CREDENTIALS = "the credentials are refused"


def _translated(work: Callable[[], T]) -> Callable[[], T]:
    """`work` with the driver's exceptions replaced by ours; runs in the thread."""

    def guarded() -> T:
        import grpc
        from pymilvus.exceptions import MilvusException

        try:
            return work()
        except grpc.RpcError as error:
            raise _of_rpc(error.code()) from None
        except MilvusException as error:
            raise _of_milvus(error) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # pymilvus checks arguments with plain exceptions.
            raise ProjectionRefused("milvus", type(error).__name__) from None

    return guarded


def _of_rpc(code: Any) -> TargetUnavailable | ProjectionRefused:
    name = getattr(code, "name", str(code))
    if name in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return TargetUnavailable("milvus", CREDENTIALS)
    if name == "DEADLINE_EXCEEDED":
        return TargetTimeout("milvus", "no answer in time")
    if name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"):
        return ProjectionRefused("milvus", name)
    return TargetUnavailable("milvus", "it does not answer")


def _of_milvus(error: Any) -> Exception:
    import grpc
    from pymilvus.exceptions import MilvusException

    if isinstance(error.__cause__, grpc.RpcError):
        return _of_rpc(error.__cause__.code())
    code = error.code
    if not isinstance(code, int):
        return _of_rpc(code)
    if code == _COLLECTION_NOT_FOUND:
        return ProjectionMissing("milvus", "of that name")
    # Code 1 is also pymilvus' own: as its base class for retries that ran out of time, as a subclass for bad arguments.
    if code in _UNAVAILABLE or (code == 1 and type(error) is MilvusException):
        return TargetUnavailable("milvus", "it is not ready")
    return ProjectionRefused("milvus", f"code {int(code)}")
