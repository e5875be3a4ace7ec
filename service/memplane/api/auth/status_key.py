"""The status key: reads `/v1/admin/status` and nothing else, beside every mode of authentication."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path

from memplane.api.auth.identity import bearer_token
from memplane.api.auth.key_file import hash_key
from memplane.api.auth.watched_file import WatchedFile
from memplane.errors import SettingsError

MIN_LENGTH = 20
HASHED = "sha256:"


class StatusKey:
    """A file that holds the key itself, or `sha256:` and the hex of its hash; hot reloaded. None: there is no key."""

    def __init__(self, path: Path | None) -> None:
        self._file = WatchedFile(path, parse_status_key) if path is not None else None

    def load(self) -> None:
        """Read the file. Raises `SettingsError`."""
        if self._file is not None:
            self._file.load()

    def matches(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the request bears this key."""
        token = bearer_token(headers)
        if self._file is None or token is None:
            return False
        return hmac.compare_digest(self._file.get(), hash_key(token))


def parse_status_key(text: str) -> str:
    """The key's SHA-256 in hex. Raises `SettingsError` for a short key or a malformed hash."""
    key = text.strip()
    if key.startswith(HASHED):
        digest = key.removeprefix(HASHED).lower()
        if len(digest) != 64 or any(character not in "0123456789abcdef" for character in digest):
            raise SettingsError("the status key's hash must be 64 hexadecimal digits")
        return digest
    if len(key) < MIN_LENGTH:
        raise SettingsError(f"the status key must have at least {MIN_LENGTH} characters")
    return hash_key(key)
