"""Registrations: one per worker and id, with resources and services of its own. Source: RT-01, RT-02, RT-07, RT-14."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from memplane.runtime.context import ADDRESS_FIELDS, WorkerAddress
from memplane.runtime.errors import DefinitionError
from memplane.runtime.router import select
from memplane.runtime.waiting import InFlight
from memplane.runtime.worker import NODE_ID, WorkerDefinition
from memplane.signal import Signal

RemoteInvoke: TypeAlias = Callable[[Mapping[str, Any], "Signal | None"], Awaitable[Mapping[str, Any]]]


class Registration:
    """One registered worker: local (it has a definition) or remote (it has a transport).

    `with registration.in_flight:` takes one of its `concurrency` for the time of a call.
    """

    def __init__(
        self,
        address: WorkerAddress,
        capabilities: frozenset[str],
        concurrency: int | None,
        *,
        definition: WorkerDefinition | None = None,
        remote: RemoteInvoke | None = None,
        services: Mapping[str, Any] | None = None,
    ) -> None:
        self.address = address
        self.capabilities = capabilities
        self.concurrency = concurrency
        self.definition = definition
        self.remote = remote
        self.services: Mapping[str, Any] = MappingProxyType(dict(services or {}))
        self.resources: Any = definition.resources() if definition is not None and definition.resources else None
        self.available = True
        self.chosen: dict[str, int] = {}
        self.in_flight = InFlight()
        self._disposing: asyncio.Task[None] | None = None

    @property
    def active(self) -> int:
        return self.in_flight.count

    def has_capacity(self) -> bool:
        return self.concurrency is None or self.active < self.concurrency

    def as_wire(self) -> dict[str, Any]:
        order = self.definition.expose if self.definition is not None else sorted(self.capabilities)
        return {
            "address": self.address.as_wire(),
            "capabilities": list(order),
            "available": self.available,
            "active": self.active,
            "concurrency": self.concurrency,
        }

    async def dispose(self) -> None:
        """Wait for running calls, then dispose the resources; once, whoever asks."""
        if self._disposing is None:
            self._disposing = asyncio.get_running_loop().create_task(self._dispose())
        await asyncio.shield(self._disposing)

    async def _dispose(self) -> None:
        await self.in_flight.idle()
        if self.definition is not None and self.definition.dispose is not None:
            outcome = self.definition.dispose(self.resources)
            if inspect.isawaitable(outcome):
                await outcome


class WorkerHandle:
    """What `register` returns: control over one registration."""

    def __init__(self, registry: Registry, registration: Registration) -> None:
        self._registry, self._registration = registry, registration

    @property
    def address(self) -> WorkerAddress:
        """Where it lives; also a mapping `workerId, workerType, hostId, processId`."""
        return self._registration.address

    def set_available(self, available: bool) -> None:
        """Take it out of routing, or back in; running calls are not touched."""
        self._registration.available = bool(available)

    def unregister(self) -> bool:
        """Out of routing for good; its id is free again. True the first time. The runtime's close disposes it."""
        return self._registry.remove(self._registration)

    async def close(self) -> None:
        """Unregister, wait for running calls, dispose. Raises what dispose raises."""
        self._registry.remove(self._registration)
        await self._registration.dispose()
        self._registry.forget(self._registration)


class Registry:
    """All registrations of a runtime."""

    def __init__(self, host_id: str, process_id: str, services: Mapping[str, Any]) -> None:
        for name, value in (("host_id", host_id), ("process_id", process_id)):
            if not isinstance(value, str) or not value.strip():
                raise DefinitionError(f"Runtime {name} cannot be empty")
        self.host_id, self.process_id = host_id, process_id
        self._services = services
        self._by_id: dict[str, Registration] = {}
        self._undisposed: list[Registration] = []
        self._stamp = 0

    def add_local(self, definition: WorkerDefinition, worker_id: str, services: Mapping[str, Any]) -> WorkerHandle:
        self._check_id(worker_id)
        address = WorkerAddress(worker_id, definition.type, self.host_id, self.process_id)
        registration = Registration(
            address,
            frozenset(definition.expose),
            definition.concurrency,
            definition=definition,
            services={**self._services, **services},
        )
        return self._add(registration)

    def add_remote(
        self, address: WorkerAddress, capabilities: frozenset[str], remote: RemoteInvoke, concurrency: int | None
    ) -> WorkerHandle:
        self._check_id(address.worker_id)
        if (address.host_id, address.process_id) == (self.host_id, self.process_id):
            raise DefinitionError("Use register for Workers in the current process")
        if not capabilities or not all(isinstance(node, str) and NODE_ID.fullmatch(node) for node in capabilities):
            raise DefinitionError(f"Worker {address.worker_id} must have Node IDs as capabilities")
        return self._add(Registration(address, capabilities, concurrency, remote=remote))

    def routable(self) -> Iterator[Registration]:
        yield from self._by_id.values()

    def find(self, worker_id: str) -> Registration | None:
        return self._by_id.get(worker_id)

    def local(self, address: WorkerAddress) -> Registration | None:
        """The available registration of this process with exactly this address."""
        registration = self._by_id.get(address.worker_id)
        if registration is None or registration.definition is None or registration.address != address:
            return None
        return registration if registration.available else None

    def choose(self, node: str, worker_id: str | None) -> Registration:
        """Route a call. Raises `NoWorkerAvailable`."""
        if worker_id is None:
            candidates: Iterable[Registration] = self._by_id.values()
        else:
            pinned = self._by_id.get(worker_id)
            candidates = () if pinned is None else (pinned,)
        chosen = select(candidates, node, host_id=self.host_id, process_id=self.process_id)
        self._stamp += 1
        chosen.chosen[node] = self._stamp
        return chosen

    def remove(self, registration: Registration) -> bool:
        if self._by_id.get(registration.address.worker_id) is not registration:
            return False
        del self._by_id[registration.address.worker_id]
        return True

    def forget(self, registration: Registration) -> None:
        """It is disposed without an error: closing the runtime has nothing more to do for it."""
        self._undisposed = [other for other in self._undisposed if other is not registration]

    async def close(self) -> list[Exception]:
        """Dispose everything that was ever registered; returns the failures."""
        self._by_id.clear()
        registrations, self._undisposed = self._undisposed, []
        outcomes = await asyncio.gather(*(r.dispose() for r in registrations), return_exceptions=True)
        return [outcome for outcome in outcomes if isinstance(outcome, Exception)]

    def _check_id(self, worker_id: object) -> None:
        if not isinstance(worker_id, str) or not worker_id.strip() or worker_id in self._by_id:
            raise DefinitionError(f"Duplicate or empty Worker ID: {worker_id}")

    def _add(self, registration: Registration) -> WorkerHandle:
        self._by_id[registration.address.worker_id] = registration
        self._undisposed.append(registration)
        return WorkerHandle(self, registration)


def parse_address(address: Mapping[str, str]) -> WorkerAddress:
    """An address from its wire object. Raises `DefinitionError`."""
    values = [address.get(field) if isinstance(address, Mapping) else None for field in ADDRESS_FIELDS]
    if not all(isinstance(value, str) and value.strip() for value in values):
        raise DefinitionError(f"A Worker address needs {', '.join(ADDRESS_FIELDS)}")
    return WorkerAddress(*values)  # type: ignore[arg-type]
