"""Prometheus' own checker of rules, from Debian's package; the server in that package is never started."""

from __future__ import annotations

from pathlib import Path

from tests.stack.debian import program


def promtool() -> Path:
    """The program. Raises `StackError` when it cannot be fetched."""
    return program("promtool", package="prometheus")
