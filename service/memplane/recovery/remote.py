"""Calls to the fulfilment service: bounded in time, cancelled by a signal, never redirected, never retried."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx

from memplane.recovery.errors import RecoveryError
from memplane.signal import Signal

TRANSPORT_SECONDS = 10.0
MAX_BODY_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `status` 0: nothing usable did (lost connection, time out, no JSON)."""

    status: int
    body: Any = None


def service_origin(value: object) -> str:
    """An http(s) origin without credentials, path or query. Raises `RecoveryError`."""
    refused = RecoveryError("Provide a service origin without credentials or path")
    if not isinstance(value, str):
        raise refused
    try:
        url = httpx.URL(value)
    except (httpx.InvalidURL, TypeError):
        raise refused from None
    plain = url.scheme in ("http", "https") and url.host and not url.userinfo and url.path in ("", "/")
    if not plain or url.query or url.fragment:
        raise refused
    return str(url.copy_with(path="/")).rstrip("/")


class ServiceClient:
    """One origin, one connection pool."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        # Reading the authorities' certificates takes longer than all else here; plain http needs none.
        self._client = httpx.AsyncClient(
            base_url=origin,
            timeout=TRANSPORT_SECONDS,
            follow_redirects=False,
            trust_env=False,
            verify=not origin.startswith("http:"),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, *, params: dict[str, str] | None = None, signal: Signal | None = None) -> Answer:
        return await self._send("GET", path, signal, params=params)

    async def post(self, path: str, body: Any, *, signal: Signal | None = None) -> Answer:
        return await self._send("POST", path, signal, json=body)

    async def _send(self, method: str, path: str, signal: Signal | None, **content: Any) -> Answer:
        """Raises the signal's reason when it aborts; the service may go on with what it has received."""
        if signal is not None:
            signal.raise_if_aborted()
        request = asyncio.ensure_future(self._request(method, path, **content))
        aborted = asyncio.ensure_future(signal.wait()) if signal is not None else None
        try:
            await asyncio.wait({request, aborted} if aborted else {request}, return_when=asyncio.FIRST_COMPLETED)
            if signal is not None:
                signal.raise_if_aborted()
            return await request
        finally:
            for task in (request, aborted):
                if task is not None and not task.done():
                    task.cancel()
            await asyncio.gather(*(task for task in (request, aborted) if task is not None), return_exceptions=True)

    async def _request(self, method: str, path: str, **content: Any) -> Answer:
        try:
            async with asyncio.timeout(TRANSPORT_SECONDS), self._client.stream(method, path, **content) as response:
                data = b""
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > MAX_BODY_BYTES:
                        return Answer(0)
                return Answer(response.status_code, httpx.Response(200, content=data).json())
        except (httpx.HTTPError, TimeoutError, ValueError):
            return Answer(0)
