"""The text behind `/metrics`: this process's counters, and the figures that are counted in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, generate_latest

Refresh = Callable[[], Awaitable[None]]
"""Brings gauges up to date; keeps its own pace (10 s) and never raises."""


class RegistryExposition:
    """Refreshes, then renders the registry."""

    def __init__(self, registry: CollectorRegistry, refresh: Refresh | None = None) -> None:
        self._registry = registry
        self._refresh = refresh
        self._lock = asyncio.Lock()

    async def render(self) -> bytes:
        if self._refresh is not None:
            async with self._lock:
                await self._refresh()
        return generate_latest(self._registry)
