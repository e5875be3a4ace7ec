"""A small file that is read again when it changes: mounted Secrets are replaced while the process runs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from memplane.errors import SettingsError

log = logging.getLogger(__name__)
T = TypeVar("T")

CHECK_SECONDS = 1.0
"""How often the file's state is looked at: a removed key is refused after this long."""

_Stamp = tuple[int, int, int]


class WatchedFile(Generic[T]):
    """The parsed content of a file. A broken or vanished file keeps what was read last, and is logged once a change.

    `parse` gets the text and raises `SettingsError` when it is wrong; its message must not show secrets.
    """

    def __init__(self, path: Path, parse: Callable[[str], T], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._parse = parse
        self._clock = clock
        self._next_check = 0.0
        self._stamp: _Stamp | None = None
        self._value: T | None = None

    def load(self) -> T:
        """Read it now. Raises `SettingsError` when it cannot be read or parsed."""
        self._stamp = self._stat()
        self._value = self._read()
        self._next_check = self._clock() + CHECK_SECONDS
        return self._value

    def get(self) -> T:
        """The content, at most `CHECK_SECONDS` old as long as the file is good."""
        if self._value is None:
            return self.load()
        now = self._clock()
        if now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            self._refresh()
        return self._value

    def _refresh(self) -> None:
        stamp = self._stat()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._value = self._read()
        except SettingsError as error:
            log.error("a changed file is not used, the former content stays valid: %s", error)
        else:
            log.info("%s was read again", self._path.name)

    def _stat(self) -> _Stamp | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> T:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"{self._path.name} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SettingsError(f"{self._path.name} is not UTF-8") from None
        return self._parse(text)
