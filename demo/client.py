"""The demo speaks to the service as any program would: over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx


class CallFailed(Exception):  # noqa: N818 - names what happened
    """The service answered a node call with an error."""


@dataclass(frozen=True, slots=True)
class Found:
    """The hits of a search, and the projections that it had to do without."""

    hits: list[dict[str, Any]]
    degraded: str


class Client:
    """One service without authentication, as `memplane dev` is; every call names its user."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.AsyncClient(base_url=url, timeout=60)

    async def close(self) -> None:
        await self._http.aclose()

    async def ready(self) -> bool:
        """Does it serve node calls? 503 means that it is still starting."""
        try:
            return (await self._post("MEMORY.GET", {"ids": ["1"]}, "nobody")).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    async def projections_away(self) -> list[str]:
        """Enabled projections that do not answer yet; a Milvus Lite file takes a while to open."""
        targets = await self._targets()
        return [name for name, target in targets.items() if target["enabled"] and target["reachable"] is False]

    async def call(self, node: str, document: dict[str, Any], user: str) -> Any:
        """The output of a node. Raises `CallFailed`."""
        return self._output(await self._post(node, document, user))

    async def search(self, user: str, query: str, **more: Any) -> Found:
        answer = await self._post("MEMORY.SEARCH", {"query": query, **more}, user)
        return Found(self._output(answer), answer.headers.get("x-memory-degraded", ""))

    async def _post(self, node: str, document: dict[str, Any], user: str) -> httpx.Response:
        return await self._http.post(f"/v1/nodes/{node}", json=document, headers={"X-Memory-User": user})

    @staticmethod
    def _output(answer: httpx.Response) -> Any:
        result = answer.json()
        if answer.status_code != httpx.codes.OK or result.get("status") != "success":
            error = result.get("error", {})
            raise CallFailed(f"{error.get('code')}: {error.get('message')}")
        return result["output"]

    async def backlog(self) -> dict[str, int]:
        """Unfinished events by enabled target."""
        return {name: target["backlog"] for name, target in (await self._targets()).items() if target["enabled"]}

    async def _targets(self) -> dict[str, Any]:
        status = (await self._http.get("/v1/admin/status")).raise_for_status().json()
        targets: dict[str, Any] = status["targets"]
        return targets

    async def projection_seconds(self, target: str, memories: Sequence[str]) -> list[float]:
        """Seconds from the write to its projection, for each of these memories, by PostgreSQL's clock."""
        wanted = set(memories)
        found: list[float] = []
        before: int | None = None
        while len(found) < len(wanted):
            parameters: dict[str, str | int] = {"target": target, "status": "processed", "limit": 1000}
            if before is not None:
                parameters["before"] = before
            page = (await self._http.get("/v1/admin/outbox", params=parameters)).raise_for_status().json()
            found += [_seconds(event) for event in page["events"] if event["memoryId"] in wanted]
            before = page.get("nextBefore")
            if before is None:
                break
        return found


def _seconds(event: dict[str, Any]) -> float:
    begin, end = (datetime.fromisoformat(event[name]) for name in ("createdAt", "processedAt"))
    return (end - begin).total_seconds()
