"""How many events a claim takes from a target that is too slow for full batches.

A call that does not end in time is given up and comes back; at the same size it would not end in time again, and a busy
target would be kept busy for nothing. So the next batch is half as large, and each one that ends in time doubles it.
Pure.
"""

from __future__ import annotations


class Pace:
    """Between one event and `most`. All batches of a worker share one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = most
        """Events that the next claim takes at most."""

    def late(self) -> None:
        """A call did not end in time."""
        self.limit = max(1, self.limit // 2)

    def in_time(self) -> None:
        """A batch got through."""
        self.limit = min(self._most, self.limit * 2)
