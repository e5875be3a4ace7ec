"""The HTTP protocol over raw sockets, without our client: H-01 … H-07, and clients that misbehave."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.runtime.wire import TOKEN, compact, connect, exchange, invocation, read_answer, request

from memplane.contracts import NodeError, NodeResult
from memplane.runtime import DefinitionError, create_http_app, create_runtime, define_worker, serve_http
from memplane.runtime.transports import http_app, http_connections
from memplane.runtime.transports.http_server import serve_app

LIMIT = 4096
BAD_REQUEST = b'{"error":"Bad request"}'


class Served:
    """A runtime with one worker behind a real server."""

    def __init__(self):
        self.calls = []
        self.gate = asyncio.Event()
        self.started, self.done = asyncio.Event(), asyncio.Event()

    async def echo(self, input, ctx):
        self.calls.append((input, ctx))
        return input

    async def fail(self, input, ctx):
        raise RuntimeError("password=hunter2")

    async def big(self, input, ctx):
        return "x" * input

    async def odd(self, input, ctx):
        return object()

    async def result(self, input, ctx):
        return NodeResult("e1", "A.RESULT", "failed", None, NodeError("INVALID_INPUT", "no"))

    async def wait(self, input, ctx):
        self.started.set()
        await self.gate.wait()
        self.calls.append((input, ctx))
        self.done.set()
        return input

    async def start(self):
        nodes = {f"A.{name.upper()}": getattr(self, name) for name in ("echo", "fail", "big", "odd", "result", "wait")}
        worker = define_worker(type="A", nodes={**nodes, "A.HIDDEN": self.echo}, expose=list(nodes))
        self.runtime = create_runtime(host_id="h", process_id="p")
        self.address = self.runtime.register(worker, id="w").address
        self.server = await serve_http(self.runtime, token=TOKEN, max_body_bytes=LIMIT)
        self.url = self.server.url
        return self

    async def post(self, document, **options):
        return await exchange(self.url, request(compact(document), **options))

    async def close(self):
        self.gate.set()
        await self.server.close()
        await self.runtime.close()


@pytest.fixture
async def served():
    served = await Served().start()
    try:
        yield served
    finally:
        await served.close()


def check(answer, status, error):
    assert answer.status == status
    assert answer.body == b'{"error":"%s"}' % error.encode()
    assert answer.headers["x-ditto-protocol"] == "1"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/ditto/invoke"),
        ("PUT", "/ditto/invoke"),
        ("POST", "/ditto/invoke?x=1"),
        ("POST", "/ditto/invoke/"),
        ("POST", "/Ditto/invoke"),
        ("POST", "/ditto%2Finvoke"),
        ("POST", "/"),
    ],
)
async def test_h01_the_route_is_exact(served, method, path):
    # Route comes first: the missing token does not matter.
    check(
        await exchange(served.url, request(method=method, path=path, headers={"Authorization": None})), 404, "Not found"
    )


async def test_h01_checks_run_in_order(served):
    bad_json = b"{" * (LIMIT + 1)
    for headers, body, status, error in (
        ({"Authorization": None, "x-ditto-protocol": "9"}, bad_json, 401, "Unauthorized"),
        ({"x-ditto-protocol": "9"}, bad_json, 400, "Unsupported protocol"),
        ({}, bad_json, 413, "Request too large"),
        ({}, bad_json[:10], 400, "Invalid JSON"),
        ({}, b"{}", 400, "Invalid invocation"),
    ):
        check(await exchange(served.url, request(body, headers=headers)), status, error)
    assert served.calls == []


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", f"bearer {TOKEN}", TOKEN, f"Bearer {TOKEN} ", f"Basic {TOKEN}"]
)
async def test_h02_only_the_bearer_token_opens(served, header):
    answer = await exchange(served.url, request(headers={"Authorization": header}))
    if header == f"Bearer {TOKEN} ":  # HTTP strips white space around a header's value
        check(answer, 400, "Invalid invocation")
    else:
        check(answer, 401, "Unauthorized")


async def test_h02_two_authorization_headers_are_none(served):
    twice = request(headers={"authorization": f"Bearer {TOKEN}"})
    assert twice.lower().count(b"authorization") == 2
    check(await exchange(served.url, twice), 401, "Unauthorized")


def test_h02_tokens_are_compared_in_constant_time(monkeypatch):
    from memplane.runtime.transports import protocol

    compared = []
    monkeypatch.setattr(protocol.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    expected = protocol.token_digest("t")
    assert protocol.authorized(b"Bearer t", expected)
    assert not protocol.authorized(b"Bearer u", expected)
    assert not protocol.authorized(None, expected)
    assert {len(side) for pair in compared for side in pair} == {32}


@pytest.mark.parametrize("version", [None, "", "2", "1.0", "one"])
async def test_h03_the_protocol_header_must_be_1(served, version):
    check(await exchange(served.url, request(headers={"x-ditto-protocol": version})), 400, "Unsupported protocol")


async def test_h04_exactly_the_limit_is_allowed(served):
    document = invocation(served.address, "")
    room = LIMIT - len(compact(document))
    answer = await served.post(invocation(served.address, "x" * room))
    # The answer is shorter than the request, so it fits too.
    assert (answer.status, answer.json()["payload"]["value"]) == (200, "x" * room)
    check(await served.post(invocation(served.address, "x" * (room + 1))), 413, "Request too large")


async def test_h04_a_chunked_body_is_bounded_too(served):
    reader, writer = await connect(served.url)
    writer.write(request(b"", headers={"Content-Length": None, "Transfer-Encoding": "chunked"}))
    for _ in range(3):
        writer.write(b"800\r\n" + b"x" * 2048 + b"\r\n")
    await writer.drain()
    check(await read_answer(reader), 413, "Request too large")
    writer.close()
    await writer.wait_closed()


async def test_h04_a_huge_announced_body_is_refused_before_it_comes(served):
    check(await exchange(served.url, request(b"{}", length=10**18)), 413, "Request too large")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"a":NaN}', b"[" * 3000, b'{"a":1}x', b"\x00"])
async def test_h04_bad_json_is_named_so(served, body):
    check(await exchange(served.url, request(body)), 400, "Invalid JSON")


async def test_h04_a_response_that_is_too_large(served):
    check(await served.post(invocation(served.address, LIMIT, node="A.BIG")), 413, "Response too large")
    assert (await served.post(invocation(served.address, 100, node="A.BIG"))).status == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"id": ...}, {"id": ""}, {"id": 1}, {"node": ...}, {"node": "nodot"}, {"node": ""}, {"node": "A."}, {"node": 3},
        {"target": ...}, {"target": {}}, {"target": "w"}, {"payload": ...}, {"payload": {}},
        {"payload": {"kind": "inline"}},
        {"payload": {"kind": "reference"}}, {"payload": {"kind": "reference", "reference": {}}},
        {"payload": {"kind": "reference", "reference": {"uri": ""}}}, {"payload": {"kind": "other", "value": 1}},
        {"source": None}, {"source": {"workerId": "x"}}, {"execution": None}, {"execution": {"graphId": "g"}},
        {"execution": {"graphId": "g", "runId": 1, "nodeId": "n"}},
    ],
)  # fmt: skip
async def test_h05_an_envelope_must_be_complete(served, changes):
    check(await served.post(invocation(served.address, 1, **changes)), 400, "Invalid invocation")
    assert served.calls == []


@pytest.mark.parametrize("field", ["workerId", "workerType", "hostId", "processId"])
async def test_h05_each_part_of_the_target_is_a_nonempty_string(served, field):
    for value in ("", None, 1):
        document = invocation({**served.address, field: value}, 1)
        check(await served.post(document), 400, "Invalid invocation")


@pytest.mark.parametrize("document", [[], "x", None, 1, [{}]])
async def test_h05_an_envelope_is_an_object(served, document):
    check(await served.post(document), 400, "Invalid invocation")


@pytest.mark.parametrize("field", ["workerId", "workerType", "hostId", "processId"])
async def test_h06_a_forged_target_never_reaches_a_handler(served, field):
    check(await served.post(invocation({**served.address, field: "forged"}, 1)), 500, "Worker invocation failed")
    assert served.calls == []


@pytest.mark.parametrize("node", ["A.FAIL", "A.ODD", "A.HIDDEN", "A.UNKNOWN"])
async def test_h06_details_never_leak(served, node, caplog):
    answer = await served.post(invocation(served.address, 1, node=node))
    check(answer, 500, "Worker invocation failed")
    assert served.calls == []
    assert "hunter2" not in caplog.text


async def test_h06_a_reference_without_a_store_fails_in_execution(served):
    payload = {"kind": "reference", "reference": {"uri": "memory:1"}}
    check(await served.post(invocation(served.address, 1, payload=payload)), 500, "Worker invocation failed")


async def test_h07_success_byte_for_byte(served):
    answer = await served.post(invocation(served.address, {"text": "é", "n": 1.5, "none": None}))
    assert answer.status == 200
    assert answer.body.decode() == (
        '{"invocationId":"call-1","payload":{"kind":"inline","value":{"text":"é","n":1.5,"none":null}}}'
    )
    assert answer.headers["x-ditto-protocol"] == "1"
    assert answer.headers["content-type"] == "application/json"
    ((_, ctx),) = served.calls
    assert (ctx.signal, ctx.source, ctx.execution) == (None, None, None)


async def test_h07_node_results_cross_as_their_wire_object(served):
    answer = await served.post(invocation(served.address, 1, node="A.RESULT"))
    assert answer.status == 200
    assert answer.json()["payload"]["value"] == {
        "executionId": "e1",
        "node": "A.RESULT",
        "status": "failed",
        "error": {"code": "INVALID_INPUT", "message": "no"},
    }


async def test_h07_lone_surrogates_come_back_escaped(served):
    answer = await exchange(
        served.url, request(compact(invocation(served.address, "\ud800")).replace(b"\\\\u", b"\\u"))
    )
    assert answer.status == 200
    assert json.loads(answer.body)["payload"]["value"] == "\ud800"


async def test_h10_source_and_execution_reach_the_handler(served):
    source = {"workerId": "s", "workerType": "S", "hostId": "o", "processId": "q"}
    execution = {"graphId": "g", "runId": "r", "nodeId": "n"}
    await served.post(invocation(served.address, 1, source=source, execution=execution))
    ((_, ctx),) = served.calls
    assert ctx.source.as_wire() == source
    assert ctx.execution.as_wire() == execution


async def test_connections_are_kept_and_pipelined_requests_answered_in_order(served):
    reader, writer = await connect(served.url)
    for value in (1, 2):
        writer.write(request(compact(invocation(served.address, value, id=f"c{value}"))))
    answers = [await read_answer(reader) for _ in range(2)]
    assert [a.json()["invocationId"] for a in answers] == ["c1", "c2"]
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_leaves_does_not_cancel_its_call(served):
    _, writer = await connect(served.url)
    writer.write(request(compact(invocation(served.address, 1, node="A.WAIT"))))
    await served.started.wait()
    writer.close()
    await writer.wait_closed()
    served.gate.set()
    async with asyncio.timeout(5):
        await served.done.wait()


async def test_a_half_sent_body_times_out_and_a_vanished_one_costs_nothing(served, monkeypatch):
    app = http_app.InvokeApp(lambda headers: _allow(served.runtime), max_body_bytes=LIMIT, body_seconds=0.1)
    server = await serve_app(app)
    try:
        reader, writer = await connect(server.url)
        writer.write(request(b"{", length=100))
        check(await read_answer(reader), 408, "Request timeout")
        assert await reader.read() == b""  # and the connection is closed
        writer.close()
        await writer.wait_closed()
        _, writer = await connect(server.url)
        writer.write(request(b"{", length=100))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    finally:
        await server.close()


async def _trickle(writer):
    while True:
        writer.write(b"a")
        await asyncio.sleep(0.05)


async def _until_end(reader):
    """What still comes, without its head; a reset is an end too."""
    try:
        return (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")[2]
    except ConnectionError:
        return b""


async def _allow(runtime):
    return runtime


@pytest.mark.parametrize("sent", [b"", b"P", b"POST /ditto/invoke HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"POST /ditto/inv"])
async def test_a_head_that_does_not_come_to_its_end_is_cut(served, monkeypatch, sent):
    monkeypatch.setattr(http_connections.BoundedConnection, "head_seconds", 0.2)
    reader, writer = await connect(served.url)
    writer.write(sent)
    trickle = asyncio.create_task(_trickle(writer)) if sent else None  # one byte at a time does not extend the time
    assert await _until_end(reader) == b""
    if trickle is not None:
        trickle.cancel()
        await asyncio.gather(trickle, return_exceptions=True)
    writer.close()


async def test_an_idle_connection_after_an_answer_is_cut_too(served, monkeypatch):
    monkeypatch.setattr(http_connections.BoundedConnection, "head_seconds", 0.2)
    reader, writer = await connect(served.url)
    writer.write(request(compact(invocation(served.address, 1))))
    assert (await read_answer(reader)).status == 200
    writer.write(b"POST /ditto")
    async with asyncio.timeout(5):
        assert await _until_end(reader) == b""
    writer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"HELLO\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    ],
)
async def test_garbage_gets_one_answer_and_the_door(served, garbage):
    reader, writer = await connect(served.url)
    writer.write(garbage)
    answer = await read_answer(reader)
    check(answer, 400, "Bad request")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert (await served.post(invocation(served.address, 1))).status == 200


async def test_huge_headers_are_refused(served):
    reader, writer = await connect(served.url)
    writer.write(b"POST /ditto/invoke HTTP/1.1\r\nHost: x\r\nX-Big: " + b"x" * 100_000)
    # The answer may be lost to the reset that follows it, as the rest of the head is still under way.
    assert await _until_end(reader) in (b"", BAD_REQUEST)
    writer.close()
    assert (await served.post(invocation(served.address, 1))).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length": "abc"},
        {"Content-Length": "-1"},
        {"Content-Length": "2, 3"},
        {"Transfer-Encoding": "gzip"},
    ],
)
async def test_wrong_lengths_are_refused(served, headers):
    answer = await exchange(served.url, request(headers=headers))
    assert answer.status in (400, 501)
    assert served.calls == []


async def test_a_thousand_idle_connections_do_not_shut_others_out(served, monkeypatch):
    monkeypatch.setattr(http_connections.BoundedConnection, "max_connections", 100)
    idle = [await connect(served.url) for _ in range(300)]
    try:
        for _ in range(3):
            assert (await served.post(invocation(served.address, 1))).status == 200
        await asyncio.sleep(0.05)
        cut = sum(reader.at_eof() or reader.exception() is not None for reader, _ in idle)
        assert cut >= 200
    finally:
        for _, writer in idle:
            writer.close()


async def test_an_answer_that_nobody_reads_ends_the_connection(monkeypatch):
    monkeypatch.setattr(http_connections.BoundedConnection, "write_seconds", 0.2)
    gone, lost = asyncio.Event(), http_connections.BoundedConnection.connection_lost

    def connection_lost(connection, error):
        lost(connection, error)
        gone.set()

    monkeypatch.setattr(http_connections.BoundedConnection, "connection_lost", connection_lost)

    async def big(input, ctx):
        return "x" * 8_000_000

    runtime = create_runtime()
    address = runtime.register(define_worker(type="A", nodes={"A.BIG": big})).address
    server = await serve_http(runtime, token=TOKEN, max_body_bytes=10_000_000)
    reader, writer = await connect(server.url, receive_buffer=4096)
    writer.transport.pause_reading()
    writer.write(request(compact(invocation(address, 1, node="A.BIG"))))
    await asyncio.wait_for(gone.wait(), 20)
    writer.transport.resume_reading()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await read_answer(reader)
    writer.close()
    await asyncio.wait_for(server.close(), 5)
    await runtime.close()


async def test_close_answers_what_is_running_first(served):
    call = asyncio.create_task(served.post(invocation(served.address, 1, node="A.WAIT")))
    await served.started.wait()
    closing = asyncio.create_task(served.server.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    served.gate.set()
    assert (await call).status == 200
    await closing
    with pytest.raises(OSError):
        await connect(served.url)


@pytest.mark.parametrize("token", ["", "  ", None])
def test_a_blank_token_is_refused(token):
    with pytest.raises(DefinitionError, match="token cannot be empty"):
        create_http_app(create_runtime(), token=token)


async def test_the_app_answers_the_asgi_lifespan():
    app = create_http_app(create_runtime(), token="t")
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent = []

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
