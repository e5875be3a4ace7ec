"""One node call's time and client, watched at the price of one timer.

Most calls are answered within milliseconds, so nothing is set up for them but a timer that never fires. Once it does,
the call is watched in earnest: its deadline, and the departure of its client.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from memplane.api.asgi import ClientGone
from memplane.errors import MemplaneError
from memplane.signal import Signal

WATCH_AFTER = 0.02
"""Seconds before a call is watched."""
IGNORED_SIGNAL_GRACE = 5.0
"""Seconds beyond the deadline for a plugin that does not react to its signal."""


class RequestTimeout(MemplaneError):  # noqa: N818 - reads as what happened
    """The reason of a signal whose request took too long."""


class CallGuard:
    """Made by the call's own task. While the body is read, the deadline cancels the task; then it aborts `signal`.

    `expired` tells that a cancellation of the task was this guard's; `conclude` takes it back.
    """

    def __init__(self, receive: Receive, seconds: float) -> None:
        self.signal = Signal()
        self.expired = False
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._deadline = self._loop.time() + seconds
        self._calling = False
        self._watching = False
        self._watcher: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(min(WATCH_AFTER, seconds), self._watch)

    def calling(self) -> None:
        """The body is complete: from now on the deadline aborts the signal."""
        self._calling = True
        if self._watching:
            self._watch_client()

    def stop(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def conclude(self) -> bool:
        """After a CancelledError: whether this guard caused it, and nobody else. Then the task goes on."""
        return self.expired and self._task.uncancel() == 0

    def _watch(self) -> None:
        self._watching = True
        self._timer = self._loop.call_at(self._deadline, self._expire)
        if self._calling:
            self._watch_client()

    def _watch_client(self) -> None:
        self._watcher = self._loop.create_task(self._abort_on_disconnect())

    async def _abort_on_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.signal.abort(ClientGone("the client closed the connection"))

    def _expire(self) -> None:
        if not self._calling:
            self._give_up()
            return
        self._timer = self._loop.call_later(IGNORED_SIGNAL_GRACE, self._give_up)
        self.signal.abort(RequestTimeout("the request took too long"))

    def _give_up(self) -> None:
        self.expired = True
        self._task.cancel()
