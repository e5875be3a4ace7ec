"""Events within one process: delivered at once, never queued, never sent over a transport. Source: RT-15 … RT-17."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from memplane.runtime.errors import DefinitionError, RuntimeClosed
from memplane.runtime.waiting import InFlight

Event: TypeAlias = Mapping[str, Any]
"""`{"type": nonempty string, "payload": anything}`; handed to consumers as it is."""

EventHandler: TypeAlias = Callable[[Event], Awaitable[None] | None]

KEPT_FAILURES = 1000
"""Failures kept until somebody drains; older ones go, so that an undrained fabric stays bounded."""


@dataclass(frozen=True, slots=True)
class EventFailure:
    """A consumer raised `error` on `event`."""

    event: Event
    error: BaseException


class Subscription(Protocol):
    """Calling it unsubscribes: True the first time, False afterwards."""

    def __call__(self) -> bool: ...
    @property
    def live(self) -> bool:
        """Whether it is subscribed, or a delivery still runs."""

    async def idle(self) -> None:
        """Wait until no delivery of this subscription runs."""


class EventFabric(Protocol):
    """What a runtime needs of an event fabric. Several runtimes may share one."""

    def subscribe(self, type: str, handler: EventHandler) -> Subscription: ...  # noqa: A002
    def emit(self, event: Event) -> None: ...
    async def drain(self) -> list[EventFailure]: ...


class _LocalSubscription:
    def __init__(self, fabric: LocalEventFabric, event_type: str, handler: EventHandler) -> None:
        self.handler = handler
        self._fabric, self._type = fabric, event_type
        self._in_flight = InFlight()

    def __call__(self) -> bool:
        return self._fabric._remove(self._type, self)

    @property
    def live(self) -> bool:
        return self._in_flight.count > 0 or self._fabric._has(self._type, self)

    async def idle(self) -> None:
        await self._in_flight.idle()

    def deliver(self, event: Event) -> asyncio.Task[None]:
        # Counted before the task first runs: a close right after emit waits for it.
        self._in_flight.__enter__()
        task = asyncio.get_running_loop().create_task(self._handle(event))
        task.add_done_callback(self._in_flight.__exit__)
        return task

    async def _handle(self, event: Event) -> None:
        outcome = self.handler(event)
        if inspect.isawaitable(outcome):
            await outcome


class LocalEventFabric:
    """Delivers an event to every consumer of its type, each in a task of its own; one failing stops no other."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, list[_LocalSubscription]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: deque[EventFailure] = deque(maxlen=KEPT_FAILURES)
        self._closed = False

    def subscribe(self, type: str, handler: EventHandler) -> Subscription:  # noqa: A002 - public name
        """Call `handler(event)` for every event of `type` from now on. Returns the way to stop it."""
        self._check_open()
        if not isinstance(type, str) or not type:
            raise DefinitionError("Event type cannot be empty")
        subscription = _LocalSubscription(self, type, handler)
        self._subscriptions.setdefault(type, []).append(subscription)
        return subscription

    def emit(self, event: Event) -> None:
        """Start delivery and return before any consumer has run. Needs a running event loop."""
        self._check_open()
        event_type = event.get("type") if isinstance(event, Mapping) else None
        if not isinstance(event_type, str) or not event_type:
            raise DefinitionError("Event type cannot be empty")
        for subscription in tuple(self._subscriptions.get(event_type, ())):
            task = subscription.deliver(event)
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._settled(task, event))

    async def drain(self) -> list[EventFailure]:
        """Wait for all running deliveries, those they cause included; return and forget the failures."""
        current = asyncio.current_task()
        while waiting := {task for task in self._tasks if task is not current}:
            await asyncio.wait(waiting)
            await asyncio.sleep(0)  # lets the done callbacks move failures over
        failures = list(self._failures)
        self._failures.clear()
        return failures

    async def close(self) -> None:
        """Take no further events and wait for those under way."""
        self._closed = True
        self._subscriptions.clear()
        current = asyncio.current_task()
        while waiting := {task for task in self._tasks if task is not current}:
            await asyncio.wait(waiting)
            await asyncio.sleep(0)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeClosed("Event fabric is closed")

    def _settled(self, task: asyncio.Task[None], event: Event) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._failures.append(EventFailure(event, asyncio.CancelledError()))
        elif (error := task.exception()) is not None:
            self._failures.append(EventFailure(event, error))

    def _has(self, event_type: str, subscription: _LocalSubscription) -> bool:
        return any(listener is subscription for listener in self._subscriptions.get(event_type, ()))

    def _remove(self, event_type: str, subscription: _LocalSubscription) -> bool:
        listeners = self._subscriptions.get(event_type, [])
        for index, listener in enumerate(listeners):
            if listener is subscription:
                del listeners[index]
                if not listeners:
                    del self._subscriptions[event_type]
                return True
        return False
