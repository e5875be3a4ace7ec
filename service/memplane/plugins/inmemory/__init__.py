"""The `inmemory` store: the whole contract in one process's memory, for tests and development. Nothing survives it."""

from memplane.plugins.inmemory.backend import InMemoryBackend, InMemorySettings, InMemoryStore, plugin

__all__ = ["InMemoryBackend", "InMemorySettings", "InMemoryStore", "plugin"]
