"""The public keys of a token issuer (JWKS), from a file or a URL: cached, rotated, never fetched in a storm."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import jwt

from memplane.api.auth.loopback import is_loopback
from memplane.api.auth.watched_file import WatchedFile
from memplane.api.errors import Unauthenticated, Unavailable
from memplane.errors import SettingsError

log = logging.getLogger(__name__)

REFETCH_SECONDS = 10.0
"""Least time between two fetches, so that tokens with made-up key ids cannot make the service hammer its issuer."""
FETCH_TIMEOUT = 5.0
MAX_BYTES = 1 << 20

Keys = Mapping[str, jwt.PyJWK]
"""Usable keys by key id; a key without id is under the empty text."""


def parse_key_set(text: str) -> Keys:
    """Signature keys for RS* and ES* of a JWKS document; others are left out. Raises `SettingsError`."""
    try:
        entries = json.loads(text)["keys"]
    except (ValueError, KeyError, TypeError):
        raise SettingsError("the key set is not a JWKS document") from None
    if not isinstance(entries, list):
        raise SettingsError("the key set is not a JWKS document")
    keys: dict[str, jwt.PyJWK] = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("kty") not in ("RSA", "EC") or entry.get("use", "sig") != "sig":
            continue
        try:
            keys[str(entry.get("kid", ""))] = jwt.PyJWK.from_dict(entry)
        except jwt.PyJWTError:
            log.warning("a key of the key set cannot be used and is left out")
    return keys


def check_url(url: str) -> None:
    """Raise `SettingsError` unless keys may be fetched from there: https, or http on loopback."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and parts.hostname and is_loopback(parts.hostname):
        return
    raise SettingsError("auth.jwt.jwks_url must be an https:// URL (http:// only on loopback)")


class KeySetFile:
    """Keys from a mounted file."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, parse_key_set)

    def load(self) -> None:
        self._file.load()

    async def key(self, key_id: str) -> jwt.PyJWK:
        """The key of this id. Raises `Unauthenticated` when there is none."""
        return _pick(self._file.get(), key_id)

    async def close(self) -> None:
        return None


class KeySetUrl:
    """Keys from the issuer's URL: read at need, again after `cache_seconds`, and early for an unknown key id.

    When the issuer is away, keys read before stay valid; without any, the answer is 503 and not 401.
    """

    def __init__(
        self,
        url: str,
        *,
        cache_seconds: float,
        fetch: Callable[[str], Awaitable[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_url(url)
        self._url = url
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._client: httpx.AsyncClient | None = None
        self._fetch = fetch or self._fetch_over_http
        self._lock = asyncio.Lock()
        self._keys: Keys | None = None
        self._read_at = float("-inf")
        self._tried_at = float("-inf")

    def load(self) -> None:
        """Nothing to do: the issuer need not be up when the service starts."""

    async def key(self, key_id: str) -> jwt.PyJWK:
        """The key of this id. Raises `Unauthenticated`, or `Unavailable` when no key set could be read yet."""
        if self._keys is None or self._clock() - self._read_at >= self._cache_seconds or key_id not in self._keys:
            await self._refresh(key_id)
        if self._keys is None:
            raise Unavailable("The token issuer's keys cannot be read", retry_after=int(REFETCH_SECONDS))
        return _pick(self._keys, key_id)

    async def _refresh(self, key_id: str) -> None:
        async with self._lock:
            now = self._clock()
            fresh = self._keys is not None and now - self._read_at < self._cache_seconds and key_id in self._keys
            if fresh or now - self._tried_at < REFETCH_SECONDS:
                return
            self._tried_at = now
            try:
                self._keys = parse_key_set(await self._fetch(self._url))
                self._read_at = now
            except (httpx.HTTPError, SettingsError, OSError) as error:
                log.error(
                    "the token issuer's keys cannot be read (%s); keys read before stay valid", type(error).__name__
                )

    async def _fetch_over_http(self, url: str) -> str:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=FETCH_TIMEOUT, follow_redirects=False)
        async with self._client.stream("GET", url, headers={"accept": "application/json"}) as response:
            response.raise_for_status()
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise SettingsError("the key set is too large")
        return body.decode("utf-8", "replace")

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


KeySet = KeySetFile | KeySetUrl


def _pick(keys: Keys, key_id: str) -> jwt.PyJWK:
    found = keys.get(key_id)
    if found is None:
        raise Unauthenticated("The token is signed with an unknown key")
    return found
