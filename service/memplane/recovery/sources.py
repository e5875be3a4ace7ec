"""Source texts and result files of a task folder. Reads are bounded; writes are atomic and durable."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memplane.recovery.documents import fingerprint
from memplane.recovery.errors import RecoveryError

MAX_FINGERPRINTED_BYTES = 16 * 2**20
"""A larger source is refused when its task is created."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source text; `size` in bytes, `hash` over its JSON-quoted form."""

    text: str
    size: int

    @property
    def hash(self) -> str:
        return fingerprint(self.text)


def read_source(folder: Path, job_id: str) -> Source | None:
    """`<id>.txt`, or None when there is no such file. Raises `RecoveryError` beyond the size limit."""
    try:
        with (folder / f"{job_id}.txt").open("rb") as file:
            data = file.read(MAX_FINGERPRINTED_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > MAX_FINGERPRINTED_BYTES:
        raise RecoveryError(f"A task's source holds at most {MAX_FINGERPRINTED_BYTES} bytes")
    return Source(data.decode("utf-8", "replace"), len(data))


def write_result(folder: Path, job_id: str, document: Any, *, before_rename: Callable[[], None] = lambda: None) -> None:
    """`results/<id>.json`, whole or not at all, on disk before this returns.

    What killed processes have left of this task is removed on the way.
    """
    results = folder / "results"
    results.mkdir(exist_ok=True)
    _sweep(results, job_id)
    handle, name = _temporary(results, job_id)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
            before_rename()
            os.replace(name, results / f"{job_id}.json")  # before the lock ends
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    descriptor = os.open(results, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(results: Path, job_id: str) -> tuple[int, str]:
    """A new temporary file, open and locked: its lock, which ends with the process, tells that somebody writes it."""
    while True:
        handle, name = tempfile.mkstemp(dir=results, prefix=f".{job_id}-", suffix=".tmp")
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.stat(name), os.fstat(handle)):
                return handle, name
        except FileNotFoundError:
            pass  # swept between its making and its lock
        os.close(handle)


def _sweep(results: Path, job_id: str) -> None:
    """Remove the temporary files of this task that nobody holds."""
    for leftover in results.glob(f".{job_id}-*.tmp"):
        try:
            handle = os.open(leftover, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            leftover.unlink(missing_ok=True)
        finally:
            os.close(handle)
