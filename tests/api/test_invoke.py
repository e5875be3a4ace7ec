"""`POST /ditto/invoke` of the service: the transport's protocol in front, the service's identity and scope behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from memplane.api.app import Parts, create_app
from memplane.api.auth.api_keys import ApiKeys
from memplane.api.auth.identity import Role
from memplane.api.auth.key_file import KeyFile, new_key, render_key_file
from memplane.api.errors import Unauthenticated
from memplane.api.http_metrics import HttpMetrics
from memplane.api.invoke import SERVICE_ADDRESS, peer_endpoint
from memplane.api.plane import Answer
from memplane.contracts import JSON, NodeResult, Scope
from memplane.nodes.memory import create_memory
from memplane.plugins.inmemory import plugin
from memplane.plugins.registry import Resources
from memplane.runtime import HttpTransport, TransportError, create_runtime, graph
from memplane.runtime.transports.http_server import HttpServer, serve_app
from memplane.settings import AuthSettings, ServiceSettings
from memplane.signal import Signal

CAPABILITIES = [f"MEMORY.{name}" for name in ("GET", "QUERY", "SEARCH", "WRITE", "UPDATE", "DELETE")]


class Plane:
    """The nodes on an in-memory backend; each call in the scope that the HTTP layer decided."""

    def __init__(self) -> None:
        self.backend = plugin.create(plugin.settings_model(), Resources())
        self.scopes: list[Scope] = []
        self.refused: str | None = None

    def refusal(self) -> str | None:
        return self.refused

    async def call(self, scope: Scope, node: str, document: JSON, signal: Signal) -> Answer:
        self.scopes.append(scope)
        memory = create_memory(store=self.backend.scoped(scope))
        result: NodeResult[Any] = await memory.execute(node, document, signal=signal)
        return Answer(result)


@dataclass
class World:
    plane: Plane
    server: HttpServer
    keys: dict[str, str]

    @asynccontextmanager
    async def runtime(self, key: str, **headers: str) -> AsyncIterator[Any]:
        transport = HttpTransport(id="service", url=self.server.url, token=self.keys[key], headers=headers)
        runtime = create_runtime(transports=[transport])
        runtime.register_remote(address=SERVICE_ADDRESS, capabilities=CAPABILITIES, transport_id="service")
        try:
            yield runtime
        finally:
            await runtime.close()
            await transport.close()


@asynccontextmanager
async def world(tmp_path: Path, **settings: Any) -> AsyncIterator[World]:
    both = [Role.READER, Role.WRITER]
    made = {
        "ann": new_key(tenant="acme", users=["ann"], roles=both),
        "bob": new_key(tenant="acme", users=["bob"], roles=both),
        "reader": new_key(tenant="acme", users=["ann"], roles=[Role.READER]),
        "any": new_key(tenant="acme", users="*", roles=both),
    }
    path = tmp_path / "keys.yaml"
    path.write_text(render_key_file(KeyFile(keys=[entry for _, entry in made.values()])))
    authenticator, plane = ApiKeys(path), Plane()
    await authenticator.start()
    await plane.backend.start()
    endpoint = peer_endpoint(plane, authenticator, ServiceSettings(**settings), HttpMetrics(CollectorRegistry()))
    server = await serve_app(endpoint)
    try:
        yield World(plane, server, {name: key for name, (key, _) in made.items()})
    finally:
        await server.close()
        await plane.backend.close()


async def test_a_graph_of_another_runtime_writes_and_searches(tmp_path: Path) -> None:
    plan = (
        graph("remember")
        .node("write", "MEMORY.WRITE", [], lambda text: {"memories": [{"content": text, "key": "k"}]})
        .node("get", "MEMORY.GET", ["write"], lambda _, o: {"ids": [o["write"].unwrap()[0]["id"]]})
    )
    async with world(tmp_path) as w, w.runtime("ann") as runtime:
        outputs = await runtime.run(plan, "hello")
        assert outputs["get"].unwrap() == outputs["write"].unwrap()
        bad = await runtime.invoke("MEMORY.GET", {})
        assert (bad.status, bad.error.code) == ("failed", "INVALID_INPUT")
        assert set(w.plane.scopes) == {Scope("acme", "ann")}


async def test_a_call_reaches_the_memories_of_its_bearer_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        async with w.runtime("ann") as ann:
            (item,) = (await ann.invoke("MEMORY.WRITE", {"memories": [{"content": "ann's"}]})).unwrap()
        async with w.runtime("bob") as bob:
            assert (await bob.invoke("MEMORY.GET", {"ids": [item["id"]]})).unwrap() == []
        async with w.runtime("any", **{"X-Memory-User": "ann"}) as named:
            assert (await named.invoke("MEMORY.GET", {"ids": [item["id"]]})).unwrap() == [item]


async def test_what_is_refused_tells_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        async with w.runtime("reader") as reader:
            with pytest.raises(TransportError, match=r"^Worker request failed \(HTTP 500\)$"):
                await reader.invoke("MEMORY.WRITE", {"memories": []})
        assert w.plane.scopes == []
        invocation = {
            "id": "c",
            "node": "MEMORY.GET",
            "target": SERVICE_ADDRESS,
            "payload": {"kind": "inline", "value": {"ids": []}},
        }
        good = {"authorization": f"Bearer {w.keys['ann']}", "x-ditto-protocol": "1"}
        async with httpx.AsyncClient(base_url=w.server.url) as http:

            async def post(document: Any, headers: dict[str, str]) -> tuple[int, Any]:
                answer = await http.post("/ditto/invoke", content=json.dumps(document), headers=headers)
                assert answer.headers["x-ditto-protocol"] == "1"
                return answer.status_code, answer.json()

            status, answer = await post(invocation, good)
            assert (status, answer["invocationId"], answer["payload"]["value"]["output"]) == (200, "c", [])
            unauthorized = (401, {"error": "Unauthorized"})
            assert await post(invocation, {**good, "authorization": "Bearer mp_wrong"}) == unauthorized
            assert await post(invocation, {"x-ditto-protocol": "1"}) == unauthorized
            any_user = {**good, "authorization": f"Bearer {w.keys['any']}"}
            assert await post(invocation, any_user) == unauthorized
            failed = (500, {"error": "Worker invocation failed"})
            assert await post({**invocation, "target": {**SERVICE_ADDRESS, "workerId": "x"}}, good) == failed
            assert await post({**invocation, "node": "CONTEXT.LOAD"}, good) == failed
            w.plane.refused = "no database yet"
            assert await post(invocation, good) == failed
            w.plane.refused = None
            reference = {"kind": "reference", "reference": {"uri": "memory:1"}}
            assert await post({**invocation, "payload": reference}, good) == failed
            assert await post({**invocation, "payload": {}}, good) == (400, {"error": "Invalid invocation"})


async def test_lists_of_the_service_are_bounded_here_too(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.runtime("ann") as runtime:
        result = await runtime.invoke("MEMORY.GET", {"ids": [str(n) for n in range(10_001)]})
        assert (result.status, result.error.code) == ("failed", "INVALID_INPUT")
        assert w.plane.scopes == []


@pytest.mark.parametrize(("invoke", "status"), [(False, 404), (True, 401)])
async def test_the_route_is_off_unless_asked_for(invoke: bool, status: int) -> None:
    class Nobody:
        async def authenticate(self, headers: object) -> Any:
            raise Unauthenticated("no")

    anything: Any = SimpleNamespace(database=None, consolidation=None)
    parts = Parts(Plane(), anything, anything, anything, Nobody(), anything, CollectorRegistry(), anything, None)  # type: ignore[arg-type]
    app = create_app(parts, ServiceSettings(invoke=invoke, docs=False), AuthSettings())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as http:
        answer = await http.post("/ditto/invoke", content=b"{}")
    assert answer.status_code == status
    assert answer.headers.get("x-ditto-protocol") == ("1" if invoke else None)
