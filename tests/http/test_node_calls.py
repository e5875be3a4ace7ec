"""Node calls over a real socket: statuses, headers, limits, time, cancellation. Behind it is a fake with a log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from memplane.api.asgi import ClientGone
from memplane.api.auth.api_keys import ApiKeys
from memplane.api.auth.identity import Authenticator, Role
from memplane.api.auth.key_file import KeyFile, new_key, render_key_file
from memplane.api.auth.loopback import Loopback
from memplane.api.http_metrics import HttpMetrics
from memplane.api.nodes import NodeEndpoint
from memplane.api.plane import Answer
from memplane.contracts import JSON, CallOptions, NodeError, NodeResult, Scope
from memplane.nodes import create_memory
from memplane.settings import ServiceSettings
from memplane.signal import Signal, race
from tests.http.serving import client, serving
from tests.nodes.fakes import SearchingStore

JSON_HEADERS = {"Content-Type": "application/json"}
Behaviour = Callable[[Signal], Coroutine[Any, Any, Answer]]


def success(output: JSON = None, degraded: tuple[str, ...] = ()) -> Answer:
    return Answer(NodeResult("execution", "MEMORY.GET", "success", output), degraded)


class Plane:
    """Remembers calls and answers as it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Scope, str, JSON]] = []
        self.signals: list[Signal] = []
        self.refused: str | None = None
        self.behaviour: Behaviour | None = None
        self.answer = success([])

    def refusal(self) -> str | None:
        return self.refused

    async def call(self, scope: Scope, node: str, document: JSON, signal: Signal) -> Answer:
        self.calls.append((scope, node, document))
        self.signals.append(signal)
        return await self.behaviour(signal) if self.behaviour else self.answer


@pytest.fixture
def plane() -> Plane:
    return Plane()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@asynccontextmanager
async def endpoint(
    plane: Plane, registry: CollectorRegistry, authenticator: Authenticator | None = None, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    gate = authenticator or Loopback(bind="127.0.0.1", tenant="t")
    app = NodeEndpoint(plane, gate, ServiceSettings(**settings), HttpMetrics(registry))
    async with serving(app) as (url, _), client(url, user="ann") as http:
        yield http


async def post(http: httpx.AsyncClient, body: Any = None, node: str = "MEMORY.GET", **options: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps({"ids": ["1"]} if body is None else body).encode()
    headers = {**JSON_HEADERS, **options.pop("headers", {})}
    return await http.post(f"/v1/nodes/{node}", content=content, headers=headers, **options)


async def test_a_call_reaches_the_plane_in_its_scope(plane: Plane, registry: CollectorRegistry) -> None:
    plane.answer = success([{"id": "1", "content": "咖啡"}], degraded=("milvus", "neo4j"))
    async with endpoint(plane, registry) as http:
        response = await post(http, {"ids": ["1"], "filter": {"tenant": "other"}})
    assert response.status_code == 200
    assert response.json() == plane.answer.result.as_wire()
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-memory-degraded"] == "milvus,neo4j"
    assert "server" not in response.headers
    assert plane.calls == [(Scope("t", "ann"), "MEMORY.GET", {"ids": ["1"], "filter": {"tenant": "other"}})]
    exposition = generate_latest(registry).decode()
    assert 'memplane_http_requests_total{node="MEMORY.GET",status="success"} 1.0' in exposition


@pytest.mark.parametrize("node", ["MEMORY.RETRIEVE", "toString", "__proto__", "", "a/b", "%00", "MEMORY.GET/"])
async def test_unknown_nodes_are_the_planes_business(plane: Plane, registry: CollectorRegistry, node: str) -> None:
    plane.answer = Answer(NodeResult("e", "x", "failed", error=NodeError("UNKNOWN_NODE", "Unknown MEMORY node")))
    async with endpoint(plane, registry) as http:
        response = await post(http, node=node)
    assert response.status_code == 200
    assert response.json()["error"]["code"] == "UNKNOWN_NODE"
    assert 'node="unknown"' in generate_latest(registry).decode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nope",
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b"[1e999]",
        b"9" * 5000,
        b'"\xff\xfe"',
        b"[" * 100_000,
        b"[" * 300 + b"]" * 300,
        b'{"ids":["1"]} trailing',
    ],
)
async def test_bad_json_is_400_and_reaches_nobody(plane: Plane, registry: CollectorRegistry, body: bytes) -> None:
    async with endpoint(plane, registry) as http:
        response = await post(http, body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "BAD_JSON"
    assert response.json()["requestId"] == response.headers["x-request-id"]
    assert plane.calls == []


@pytest.mark.parametrize("body", [b"null", b"[]", b'"x"', b"5", b"{}"])
async def test_any_json_value_reaches_the_node(plane: Plane, registry: CollectorRegistry, body: bytes) -> None:
    async with endpoint(plane, registry) as http:
        assert (await post(http, body)).status_code == 200
    assert plane.calls[0][2] == json.loads(body)


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"]
)
async def test_other_content_types_are_415(plane: Plane, registry: CollectorRegistry, content_type: str | None) -> None:
    async with endpoint(plane, registry) as http:
        headers = {} if content_type is None else {"Content-Type": content_type}
        response = await http.post("/v1/nodes/MEMORY.GET", content=b"{}", headers=headers)
    assert response.status_code == 415
    assert plane.calls == []


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON", "application/json; charset=utf-8"])
async def test_json_content_types(plane: Plane, registry: CollectorRegistry, content_type: str) -> None:
    async with endpoint(plane, registry) as http:
        assert (await post(http, headers={"Content-Type": content_type})).status_code == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_405(plane: Plane, registry: CollectorRegistry, method: str) -> None:
    async with endpoint(plane, registry) as http:
        response = await http.request(method, "/v1/nodes/MEMORY.GET")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"


async def test_a_declared_length_over_the_limit_is_413_at_once(plane: Plane, registry: CollectorRegistry) -> None:
    async with endpoint(plane, registry, max_body_bytes=1024) as http:
        response = await post(http, b" " * 1025)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "TOO_LARGE"
        assert (await post(http, b" " * 1022 + b"{}")).status_code == 200


async def test_a_chunked_body_over_the_limit_is_413_while_it_streams(plane: Plane, registry: CollectorRegistry) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 64 * 2**20:
            sent += 65536
            yield b" " * 65536

    async with endpoint(plane, registry, max_body_bytes=100_000) as http:
        try:
            response = await http.post("/v1/nodes/MEMORY.GET", content=endless(), headers=JSON_HEADERS)
        except httpx.TransportError:
            pass  # the service may close the connection before the client has read the answer
        else:
            assert response.status_code == 413
    assert sent < 32 * 2**20
    assert plane.calls == []


async def test_a_client_that_still_sends_sees_its_413(plane: Plane, registry: CollectorRegistry) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(48):
            yield b" " * 65536

    async with endpoint(plane, registry, max_body_bytes=1024) as http:
        for number in range(20):
            content = chunks() if number % 2 else b" " * 3 * 2**20
            response = await http.post("/v1/nodes/MEMORY.GET", content=content, headers=JSON_HEADERS)
            assert response.status_code == 413


async def test_a_body_that_does_not_arrive_is_408(plane: Plane, registry: CollectorRegistry) -> None:
    async with endpoint(plane, registry, request_timeout=0.2) as http:
        host, port = http.base_url.host, http.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(
            b"POST /v1/nodes/MEMORY.GET HTTP/1.1\r\nHost: localhost\r\nX-Memory-User: a\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("node", "document"),
    [
        ("MEMORY.GET", {"ids": ["1"] * 10_001}),
        ("MEMORY.GET", {"keys": ["1"] * 10_001}),
        ("MEMORY.WRITE", {"memories": [{"content": 1}] * 10_001}),
        ("MEMORY.UPDATE", {"memories": [{"id": "1", "content": 1}] * 10_001}),
        ("MEMORY.DELETE", {"ids": ["1"] * 10_001}),
    ],
)
async def test_more_than_ten_thousand_are_invalid_input(
    plane: Plane, registry: CollectorRegistry, node: str, document: JSON
) -> None:
    async with endpoint(plane, registry) as http:
        response = await post(http, document, node)
    assert response.status_code == 200
    assert response.json()["node"] == node
    assert response.json()["error"]["code"] == "INVALID_INPUT"
    assert "10000" in response.json()["error"]["message"]
    assert plane.calls == []


async def test_ten_thousand_are_accepted(plane: Plane, registry: CollectorRegistry) -> None:
    async with endpoint(plane, registry) as http:
        assert (await post(http, {"ids": ["1"] * 10_000})).json()["status"] == "success"


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("abc-1", True), ("a" * 128, True), ("a" * 129, False), ("a b", False), ("a\tb", False), ("<script>", False)],
)
async def test_request_ids(plane: Plane, registry: CollectorRegistry, given: str, echoed: bool) -> None:
    async with endpoint(plane, registry) as http:
        found = (await post(http, headers={"X-Request-Id": given})).headers["x-request-id"]
    assert (found == given) is echoed
    assert echoed or (len(found) == 32 and found.isalnum())


async def test_without_a_user_it_is_400(plane: Plane, registry: CollectorRegistry) -> None:
    async with endpoint(plane, registry) as http:
        del http.headers["X-Memory-User"]
        response = await post(http)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "USER_REQUIRED"


async def test_a_foreign_host_name_is_403_in_mode_none(plane: Plane, registry: CollectorRegistry) -> None:
    async with endpoint(plane, registry) as http:
        assert (await post(http, headers={"Host": "rebound.example.org"})).status_code == 403
    assert plane.calls == []


async def test_keys_over_http(plane: Plane, registry: CollectorRegistry, tmp_path: Path) -> None:
    reads, reader = new_key(tenant="acme", users=["ann"], roles=[Role.READER])
    writes, writer = new_key(tenant="acme", users="*", roles=[Role.WRITER])
    path = tmp_path / "keys"
    path.write_text(render_key_file(KeyFile(keys=[reader, writer])))
    async with endpoint(plane, registry, ApiKeys(path)) as http:
        missing = await post(http)
        wrong = await post(http, headers={"Authorization": "Bearer mp_wrong"})
        allowed = await post(http, headers={"Authorization": f"Bearer {reads}"})
        other_user = await post(http, headers={"Authorization": f"Bearer {reads}", "X-Memory-User": "bob"})
        wrong_role = await post(http, headers={"Authorization": f"Bearer {writes}"})
        unknown = await post(http, node="NOPE", headers={"Authorization": "Bearer mp_wrong"})
    assert [r.status_code for r in (missing, wrong, allowed, other_user, wrong_role, unknown)] == [
        401, 401, 200, 403, 403, 401,
    ]  # fmt: skip
    assert missing.headers["www-authenticate"] == 'Bearer realm="memplane"'
    assert plane.calls == [(Scope("acme", "ann"), "MEMORY.GET", {"ids": ["1"]})]


async def test_before_the_truth_was_reached_it_is_503(plane: Plane, registry: CollectorRegistry) -> None:
    plane.refused = "postgresql is unavailable: it does not accept connections"
    async with endpoint(plane, registry) as http:
        response = await post(http)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert "postgresql" in response.json()["error"]["message"]


async def test_too_many_in_flight_is_503_and_passes(plane: Plane, registry: CollectorRegistry) -> None:
    release, entered = asyncio.Event(), asyncio.Event()

    async def hang(_: Signal) -> Answer:
        entered.set()
        await release.wait()
        return success([])

    plane.behaviour = hang
    async with endpoint(plane, registry, max_in_flight=1) as http:
        first = asyncio.create_task(post(http))
        await asyncio.wait_for(entered.wait(), 5)
        assert (await post(http)).status_code == 503
        release.set()
        assert (await first).status_code == 200
        assert (await post(http)).status_code == 200


async def test_the_request_timeout_aborts_the_signal(plane: Plane, registry: CollectorRegistry) -> None:
    async def obedient(signal: Signal) -> Answer:
        await signal.wait()
        error = NodeError("MEMORY_CANCELLED", "Memory operation cancelled")
        return Answer(NodeResult("e", "MEMORY.GET", "cancelled", error=error))

    plane.behaviour = obedient
    async with endpoint(plane, registry, request_timeout=0.1) as http:
        response = await post(http)
    assert response.status_code == 200
    assert response.json()["error"]["code"] == "MEMORY_CANCELLED"


async def test_a_plugin_that_ignores_its_signal_is_504(
    plane: Plane, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(_: Signal) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("memplane.api.call_guard.IGNORED_SIGNAL_GRACE", 0.1)
    plane.behaviour = deaf
    async with endpoint(plane, registry, request_timeout=0.1) as http:
        assert (await post(http)).status_code == 504


async def test_a_client_that_goes_away_aborts_its_call(plane: Plane, registry: CollectorRegistry) -> None:
    aborted = asyncio.Event()

    async def wait_for_abort(signal: Signal) -> Answer:
        await signal.wait()
        aborted.set()
        return success([])

    plane.behaviour = wait_for_abort
    async with endpoint(plane, registry) as http:
        with pytest.raises(httpx.ReadTimeout):
            await post(http, timeout=0.2)
        await asyncio.wait_for(aborted.wait(), 5)


async def test_a_client_that_goes_away_is_no_failure_in_the_log(
    plane: Plane, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    class Store(SearchingStore):
        async def query(self, input: Any, options: CallOptions) -> Any:
            await race(asyncio.Event().wait(), options.signal)

    ended = asyncio.Event()

    async def call(signal: Signal) -> Answer:
        result = await create_memory(store=Store()).query({}, signal=signal)
        ended.set()
        return Answer(result)

    plane.behaviour = call
    with caplog.at_level(logging.DEBUG, logger="memplane"):
        async with endpoint(plane, registry) as http:
            with pytest.raises(httpx.ReadTimeout):
                await post(http, timeout=0.2)
            await asyncio.wait_for(ended.wait(), 5)
    assert isinstance(plane.signals[0].reason, ClientGone)
    told = [(record.levelno, vars(record).get("error")) for record in caplog.records if "MEMORY" in record.getMessage()]
    assert told == [(logging.DEBUG, "ClientGone")]
    assert max(record.levelno for record in caplog.records) <= logging.INFO


async def test_an_unexpected_error_is_500_and_tells_nothing(
    plane: Plane, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_: Signal) -> Answer:
        raise RuntimeError("password=secret")

    plane.behaviour = broken
    async with endpoint(plane, registry) as http:
        response = await post(http)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "secret" not in " ".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("output", [float("nan"), {1, 2}, b"bytes"])
async def test_output_that_is_not_json_is_a_failed_result(
    plane: Plane, registry: CollectorRegistry, output: object
) -> None:
    plane.answer = success(output)
    async with endpoint(plane, registry) as http:
        response = await post(http)
    assert response.status_code == 200
    assert response.json()["error"]["code"] == "INVALID_BACKEND_OUTPUT"


async def test_slow_heads_are_cut_off(plane: Plane, registry: CollectorRegistry) -> None:
    app = NodeEndpoint(plane, Loopback(bind="127.0.0.1", tenant="t"), ServiceSettings(), HttpMetrics(registry))
    async with serving(app, head_timeout=0.2) as (url, _):
        port = httpx.URL(url).port
        silent = await asyncio.open_connection("127.0.0.1", port)
        slow = await asyncio.open_connection("127.0.0.1", port)
        slow[1].write(b"POST /v1/nodes/MEMORY.GET HTTP/1.1\r\nHost: local")
        for reader, writer in (silent, slow):
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        async with client(url, user="ann") as http:
            assert (await post(http)).status_code == 200
            await asyncio.sleep(0.4)
            assert (await post(http)).status_code == 200, "idle connections are the keep-alive timer's"


async def test_large_heads_are_refused(plane: Plane, registry: CollectorRegistry) -> None:
    app = NodeEndpoint(plane, Loopback(bind="127.0.0.1", tenant="t"), ServiceSettings(), HttpMetrics(registry))
    async with serving(app, max_header_bytes=4096) as (url, _), client(url, user="ann") as http:
        try:
            response = await post(http, headers={"X-Large": "a" * 200_000})
        except httpx.TransportError:
            pass  # the service may close the connection before the client has read the answer
        else:
            assert response.status_code == 400
    assert plane.calls == []


async def test_a_stop_finishes_what_is_in_flight(plane: Plane, registry: CollectorRegistry) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow(_: Signal) -> Answer:
        entered.set()
        await release.wait()
        return success([])

    plane.behaviour = slow
    app = NodeEndpoint(plane, Loopback(bind="127.0.0.1", tenant="t"), ServiceSettings(), HttpMetrics(registry))
    async with serving(app) as (url, server), client(url, user="ann") as http, client(url, user="ann") as late:
        call = asyncio.create_task(post(http))
        await asyncio.wait_for(entered.wait(), 5)
        server.stop()
        await asyncio.sleep(0.3)
        with pytest.raises(httpx.ConnectError):
            await post(late)
        release.set()
        assert (await call).json()["status"] == "success"
