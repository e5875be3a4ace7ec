"""The store on PostgreSQL, the only truth: scoped, versioned, atomic; every change leaves its events in the outbox.

The driver is imported with the names below, on first use: the modules that define what a memory may hold (documents,
reserved fields, order, cursors, words) serve other stores too and need no driver. The entry point is in `plugin.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memplane.plugins.postgres.backend import PostgresBackend
    from memplane.plugins.postgres.delete import expire
    from memplane.plugins.postgres.inspection import memory_state
    from memplane.plugins.postgres.rows import hydrate

__all__ = ["PostgresBackend", "expire", "hydrate", "memory_state"]

_HOMES = {"PostgresBackend": "backend", "expire": "delete", "memory_state": "inspection", "hydrate": "rows"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
