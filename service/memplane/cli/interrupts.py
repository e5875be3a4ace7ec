"""Ctrl-C and SIGTERM as a signal that a long command, or one without an end, obeys: it ends in good order."""

from __future__ import annotations

import asyncio
import contextlib
import signal as signals
from collections.abc import Iterator

from memplane.signal import Signal


@contextlib.contextmanager
def interruptible() -> Iterator[Signal]:
    """A signal that the first Ctrl-C or SIGTERM aborts. What was done stays. To be entered inside the running loop."""
    signal, loop = Signal(), asyncio.get_running_loop()
    for number in (signals.SIGINT, signals.SIGTERM):
        loop.add_signal_handler(number, signal.abort)
    try:
        yield signal
    finally:
        for number in (signals.SIGINT, signals.SIGTERM):
            loop.remove_signal_handler(number)
