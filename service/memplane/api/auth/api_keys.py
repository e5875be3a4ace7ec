"""Mode `apiKeys`: `Authorization: Bearer mp_…`, checked against a hot-reloaded file of hashes."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from memplane.api.auth.identity import Identity, bearer_token
from memplane.api.auth.key_file import KeyEntry, hash_key, parse_key_file
from memplane.api.auth.watched_file import WatchedFile
from memplane.api.errors import Unauthenticated

REFUSED = "The API key is unknown or expired"

_Keys = dict[str, tuple[KeyEntry, Identity]]


def _now() -> datetime:
    return datetime.now(UTC)


class ApiKeys:
    """Knows every key by its hash alone.

    The table is asked with the hash of what was presented, which a caller cannot steer towards a stored one; the
    comparison of the two hashes takes constant time besides.
    """

    def __init__(self, path: Path, *, now: Callable[[], datetime] = _now) -> None:
        self._file: WatchedFile[_Keys] = WatchedFile(path, _index)
        self._now = now

    async def start(self) -> None:
        self._file.load()

    async def close(self) -> None:
        return None

    async def authenticate(self, headers: Mapping[bytes, bytes]) -> Identity:
        key = bearer_token(headers)
        if key is None:
            raise Unauthenticated("An API key is required: Authorization: Bearer mp_…")
        digest = hash_key(key)
        found = self._file.get().get(digest)
        if found is None or not hmac.compare_digest(found[0].sha256, digest):
            raise Unauthenticated(REFUSED)
        entry, identity = found
        if entry.expires_at is not None and entry.expires_at <= self._now():
            raise Unauthenticated(REFUSED)
        return identity


def _index(text: str) -> _Keys:
    return {entry.sha256: (entry, entry.identity()) for entry in parse_key_file(text).keys}
