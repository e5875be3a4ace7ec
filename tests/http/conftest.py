"""The fixtures of `world.py`."""

from tests.http.world import keys, log_stream, settings

__all__ = ["keys", "log_stream", "settings"]
