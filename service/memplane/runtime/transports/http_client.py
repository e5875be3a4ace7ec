"""The client side of the HTTP transport. Source: behaviours H-08, H-09, H-11. Needs httpx (extra `http`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from memplane.errors import SettingsError
from memplane.runtime.envelope import check_answer
from memplane.runtime.errors import DefinitionError, RuntimeClosed, TransportError, TransportTimeout
from memplane.runtime.transports.protocol import (
    DEFAULT_MAX_BODY_BYTES,
    DEFAULT_TIMEOUT_MS,
    PATH,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    check_id,
    check_size,
    check_timeout,
    decode,
    encode,
    token_digest,
)
from memplane.runtime.waiting import abortable
from memplane.signal import Signal

if TYPE_CHECKING:
    import httpx


class HttpTransport:
    """Calls workers of another runtime over HTTP. No redirects, no retries, no proxy from the environment.

    url: the server's origin, or a prefix in front of `/ditto/invoke`. timeout_ms: for one whole call.
    max_body_bytes: largest request and largest answer. headers: sent beside the protocol's own.
    Close it after the runtimes that use it.
    Raises `DefinitionError` on an option that cannot work, `SettingsError` without the extra `http`.
    """

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - public name
        url: str,
        token: str,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.id = check_id(id)
        self._seconds = check_timeout(timeout_ms)
        self._max_body_bytes = check_size("max_body_bytes", max_body_bytes)
        self._url = _endpoint(url)
        token_digest(token)
        self._headers = {
            **{name.lower(): value for name, value in (headers or {}).items()},
            "authorization": f"Bearer {token}",
            "content-type": "application/json",
            "accept-encoding": "identity",  # a compressed answer could grow past the limit before it is counted
            PROTOCOL_HEADER: PROTOCOL_VERSION,
        }
        try:
            import httpx
        except ImportError:
            raise SettingsError("HttpTransport needs the extra `http`: pip install 'memplane[http]'") from None
        self._client: httpx.AsyncClient | None = httpx.AsyncClient(
            follow_redirects=False,
            trust_env=False,
            timeout=None,  # noqa: S113 - one deadline for the whole call is kept below
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=20),
        )

    async def invoke(self, envelope: Mapping[str, Any], signal: Signal | None = None) -> Mapping[str, Any]:
        """Send an invocation and return its answer.

        Raises `TransportError`, `TransportTimeout`, or the signal's reason. Giving up ends only this wait: the other
        side goes on.
        """
        body = encode(envelope)
        if len(body) > self._max_body_bytes:
            raise TransportError("Worker request is too large")
        return await abortable(self._call(body, envelope["id"]), signal)

    async def close(self) -> None:
        """Close its connections; later calls are refused. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _call(self, body: bytes, invocation_id: str) -> Mapping[str, Any]:
        import httpx

        if self._client is None:
            raise RuntimeClosed("HTTP transport is closed")
        try:
            async with asyncio.timeout(self._seconds):
                async with self._client.stream("POST", self._url, content=body, headers=self._headers) as response:
                    answer = await self._read(response)
        except TimeoutError:
            raise TransportTimeout("Worker request timed out") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError):
            raise TransportError("Worker request failed") from None
        try:
            document = decode(answer)
        except ValueError:
            raise TransportError("Invalid Worker result") from None
        check_answer(document, invocation_id)
        result: Mapping[str, Any] = document
        return result

    async def _read(self, response: httpx.Response) -> bytes:
        if not response.is_success:
            raise TransportError(f"Worker request failed (HTTP {response.status_code})")
        if response.headers.get(PROTOCOL_HEADER) != PROTOCOL_VERSION:
            raise TransportError("Invalid Worker protocol response")
        answer = bytearray()
        # Closed at once, also when the answer is cut: an abandoned iterator would keep its socket until collected.
        parts = response.aiter_raw()
        try:
            async for part in parts:
                answer += part
                if len(answer) > self._max_body_bytes:
                    raise TransportError("Worker response is too large")
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()
        return bytes(answer)


def _endpoint(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except (ValueError, AttributeError, TypeError):
        valid = False
    if not valid or "@" in parts.netloc or parts.query or parts.fragment:
        raise DefinitionError("Worker URL must be an http(s) URL without credentials, query and fragment")
    plain = url.rstrip("/")
    return plain if plain.endswith(PATH) else plain + PATH
