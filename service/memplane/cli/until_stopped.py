"""SIGTERM and Ctrl-C as a signal of ours, for commands that run until they are told to end."""

from __future__ import annotations

import asyncio
import signal

from memplane.signal import Signal


def stop_signal() -> Signal:
    """Aborts on SIGTERM or SIGINT. To be called inside the running loop."""
    stopped, loop = Signal(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.abort)
    return stopped
