"""Our clients against real servers: H-08 … H-13, over HTTP and over a Unix socket."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
import struct
import subprocess
import sys
import textwrap
import threading

import pytest
from tests.runtime.wire import TOKEN, invocation

from memplane.runtime import (
    DefinitionError,
    HttpTransport,
    IpcTransport,
    RuntimeClosed,
    TransportError,
    TransportTimeout,
    create_runtime,
    define_worker,
    graph,
    serve_http,
    serve_ipc,
)
from memplane.signal import Signal


class Far:
    """A runtime in "another process" with nodes to call, and what its handlers saw."""

    def __init__(self):
        self.seen, self.finished = [], asyncio.Event()
        self.started, self.gate = asyncio.Event(), asyncio.Event()
        nodes = {"A.ECHO": self.echo, "A.WAIT": self.wait, "A.FAIL": self.fail}
        self.runtime = create_runtime(host_id="h2", process_id="p2")
        self.address = dict(self.runtime.register(define_worker(type="A", nodes=nodes), id="far").address)

    async def echo(self, input, ctx):
        self.seen.append(ctx)
        return input

    async def wait(self, input, ctx):
        self.seen.append(ctx)
        self.started.set()
        await self.gate.wait()
        self.finished.set()
        return input

    async def fail(self, input, ctx):
        raise ValueError("secret detail")


@pytest.fixture(params=["http", "ipc"])
async def link(request, tmp_path):
    """(far, near runtime, transport) joined by one kind of transport."""
    far = Far()
    if request.param == "http":
        server = await serve_http(far.runtime, token=TOKEN)
        make = lambda **options: HttpTransport(id="t", url=server.url, token=TOKEN, **options)  # noqa: E731
    else:
        server = await serve_ipc(far.runtime, path=tmp_path / "s.sock")
        make = lambda **options: IpcTransport(id="t", path=server.path, **options)  # noqa: E731
    transport = make()
    near = create_runtime(host_id="h1", process_id="p1", transports=[transport])
    near.register_remote(address=far.address, capabilities=["A.ECHO", "A.WAIT", "A.FAIL"], transport_id="t")
    before = asyncio.all_tasks()
    far.make, far.before, far.server = make, before, server
    yield far, near, transport
    far.gate.set()
    await near.close()
    await transport.close()
    await server.close()
    await far.runtime.close()


async def test_h10_a_graph_runs_through_the_transport(link):
    far, near, _ = link
    near.register(define_worker(type="L", nodes={"A.ECHO": far.echo}), id="local")
    plan = graph("remote").node("n", "A.ECHO", [], lambda v: v).node("m", "A.ECHO", ["n"], lambda v, o: o["n"])
    outputs = await near.run(plan, {"q": [1, None, "é"]}, bindings={"n": "far", "m": "far"})
    assert dict(outputs) == {"n": {"q": [1, None, "é"]}, "m": {"q": [1, None, "é"]}}
    first, second = far.seen
    assert (first.execution.graph_id, first.execution.node_id, second.execution.node_id) == ("remote", "n", "m")
    assert first.execution.run_id == second.execution.run_id
    assert first.worker.worker_id == "far"
    await near.run(plan, 1)  # without bindings the nearest one runs
    assert far.seen[-1].worker.worker_id == "local"


async def test_h11_aborting_stops_only_the_callers_wait(link):
    far, near, _ = link
    signal = Signal()
    call = asyncio.create_task(near.invoke("A.WAIT", 1, signal=signal))
    await far.started.wait()
    signal.abort(KeyError("mine"))
    with pytest.raises(KeyError, match="mine"):
        await asyncio.wait_for(call, 2)
    assert not far.finished.is_set()
    assert far.seen[0].signal is None
    far.gate.set()
    await asyncio.wait_for(far.finished.wait(), 2)


async def test_h11_asyncio_cancellation_frees_the_caller_too(link):
    far, near, _ = link
    call = asyncio.create_task(near.invoke("A.WAIT", 1))
    await far.started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert near.workers()[0]["active"] == 0
    far.gate.set()
    await asyncio.wait_for(far.finished.wait(), 2)


async def test_rt09_a_private_node_cannot_be_called_from_outside(link):
    far, near, _ = link
    far.runtime.register(
        define_worker(type="P", nodes={"P.OPEN": far.echo, "P.HIDDEN": far.echo}, expose=["P.OPEN"]), id="p"
    )
    address = {**far.address, "workerId": "p", "workerType": "P"}
    near.register_remote(address=address, capabilities=["P.OPEN", "P.HIDDEN"], transport_id="t")
    assert await near.invoke("P.OPEN", 1) == 1
    with pytest.raises(TransportError):
        await near.invoke("P.HIDDEN", 1)
    with pytest.raises(TransportError, match=r"mismatched$"):
        await far.runtime.receive(invocation(address, 1, node="P.HIDDEN"))
    assert len(far.seen) == 1


async def test_h12_exceptions_of_handlers_lose_everything(link):
    _, near, _ = link
    with pytest.raises(TransportError) as caught:
        await near.invoke("A.FAIL", 1)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_h13_timeouts_say_so(link):
    far, _, _ = link
    transport = far.make(timeout_ms=1)
    with pytest.raises(TransportTimeout, match=r"timed out$"):
        await transport.invoke(invocation(far.address, 1, node="A.WAIT"))
    await transport.close()


async def test_h13_an_aborted_signal_raises_its_reason_from_the_transport_itself(link):
    far, _, transport = link
    signal = Signal()
    call = asyncio.create_task(transport.invoke(invocation(far.address, 1, node="A.WAIT"), signal=signal))
    await far.started.wait()
    signal.abort(KeyError("mine"))
    with pytest.raises(KeyError, match="mine"):
        await call
    with pytest.raises(KeyError):
        await transport.invoke(invocation(far.address, 1), signal=signal)


async def test_h13_later_calls_of_a_closed_transport_are_refused(link):
    far, _, transport = link
    await transport.close()
    await transport.close()
    with pytest.raises(RuntimeClosed, match=r"closed$"):
        await transport.invoke(invocation(far.address, 1))


async def test_h08_an_answer_to_another_invocation_is_refused():
    class Wrong:
        id = "t"

        def __init__(self, answer):
            self.answer = answer

        async def invoke(self, envelope, signal=None):
            return self.answer

    far = {"workerId": "w", "workerType": "A", "hostId": "x", "processId": "y"}
    inline = {"kind": "inline", "value": 1}
    for answer, message in (
        ({"invocationId": "other", "payload": inline}, "mismatched invocation"),
        ({"invocationId": "other"}, "Invalid Worker result"),
        ({"payload": {"kind": "odd"}}, "Invalid Worker result"),
        (None, "Invalid Worker result"),
    ):
        runtime = create_runtime(transports=[Wrong(answer)])
        runtime.register_remote(address=far, capabilities=["A.B"], transport_id="t")
        with pytest.raises(TransportError, match=message):
            await runtime.invoke("A.B", 1)


async def canned(response):
    """A server that answers every connection with these bytes; and how many requests it saw."""
    requests = []

    async def answer(reader, writer):
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(response)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests


def http(status, body=b"{}", headers="x-ditto-protocol: 1\r\n"):
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{headers}\r\n".encode() + body


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (http(500), r"^Worker request failed \(HTTP 500\)$"),
        (http(404, headers=""), r"^Worker request failed \(HTTP 404\)$"),
        (http(302, headers="location: http://127.0.0.1:1/x\r\n"), r"^Worker request failed \(HTTP 302\)$"),
        (http(200, headers=""), r"^Invalid Worker protocol response$"),
        (http(200, headers="x-ditto-protocol: 2\r\n"), r"^Invalid Worker protocol response$"),
        (http(200, b"no json"), r"^Invalid Worker result$"),
        (http(200, b'{"invocationId":"call-1"}'), r"^Invalid Worker result$"),
        (http(200, b'{"invocationId":"x","payload":{"kind":"inline","value":1}}'), "mismatched invocation"),
        (http(200, b'"' + b"x" * 5000 + b'"'), r"^Worker response is too large$"),
        (b"HTTP/1.1 200 X\r\ncontent-length: 100\r\nx-ditto-protocol: 1\r\n\r\nhalf", r"^Worker request failed$"),
        (b"garbage\r\n\r\n", r"^Worker request failed$"),
    ],
)
async def test_h08_the_client_checks_the_answer_and_never_retries(response, message):
    server, url, requests = await canned(response)
    transport = HttpTransport(id="t", url=url, token=TOKEN, max_body_bytes=4096)
    address = {"workerId": "w", "workerType": "A", "hostId": "x", "processId": "y"}
    with pytest.raises(TransportError, match=message):
        await transport.invoke(invocation(address, 1))
    assert len(requests) == 1
    head = requests[0].decode()
    assert head.startswith("POST /ditto/invoke HTTP/1.1\r\n")
    assert "x-ditto-protocol: 1\r\n" in head
    assert f"authorization: Bearer {TOKEN}\r\n" in head.replace("Authorization", "authorization")
    await transport.close()
    server.close()


async def test_h08_a_request_that_is_too_large_does_not_connect():
    server, url, requests = await canned(http(200))
    transport = HttpTransport(id="t", url=url, token=TOKEN, max_body_bytes=200)
    with pytest.raises(TransportError, match=r"^Worker request is too large$"):
        await transport.invoke(invocation({"workerId": "w"}, "x" * 200))
    assert requests == []
    await transport.close()
    server.close()


async def test_h08_a_server_that_is_not_there():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    transport = HttpTransport(id="t", url=f"http://127.0.0.1:{port}", token=TOKEN)
    with pytest.raises(TransportError, match=r"^Worker request failed$") as caught:
        await transport.invoke(invocation({}, 1))
    assert caught.value.__cause__ is None
    await transport.close()


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), 1.5, 2147483648, True, "5"])
def test_h09_timeouts_are_checked(timeout, tmp_path):
    for make in (
        lambda: HttpTransport(id="t", url="http://h", token="t", timeout_ms=timeout),
        lambda: IpcTransport(id="t", path=tmp_path / "s", timeout_ms=timeout),
    ):
        with pytest.raises(DefinitionError, match=r"timeout_ms must be an integer in 1\.\.2147483647"):
            make()


def test_h09_ids_tokens_and_urls_are_checked(tmp_path):
    for id in ("", " ", None):
        with pytest.raises(DefinitionError, match="Transport ID"):
            HttpTransport(id=id, url="http://h", token="t")
        with pytest.raises(DefinitionError, match="Transport ID"):
            IpcTransport(id=id, path=tmp_path / "s")
    for token in ("", " "):
        with pytest.raises(DefinitionError, match="token"):
            HttpTransport(id="t", url="http://h", token=token)
    for url in (
        "ftp://h",
        "http://",
        "http://u:p@h",
        "http://u@h",
        "h:80",
        "",
        None,
        "http://h?x=1",
        "http://h:0",
        "http://h#f",
    ):
        with pytest.raises(DefinitionError, match="Worker URL"):
            HttpTransport(id="t", url=url, token="t")


async def test_a_url_may_be_an_origin_a_prefix_or_the_endpoint():
    for url, expected in (
        ("http://h:1", "http://h:1/ditto/invoke"),
        ("http://h:1/", "http://h:1/ditto/invoke"),
        ("https://h/prefix", "https://h/prefix/ditto/invoke"),
        ("http://h/ditto/invoke", "http://h/ditto/invoke"),
    ):
        transport = HttpTransport(id="t", url=url, token="t")
        assert transport._url == expected
        await transport.close()


async def test_h13_close_rejects_all_outstanding_ipc_calls(tmp_path):
    far = Far()
    server = await serve_ipc(far.runtime, path=tmp_path / "s.sock")
    transport = IpcTransport(id="t", path=server.path)
    calls = [
        asyncio.create_task(transport.invoke(invocation(far.address, n, node="A.WAIT", id=f"c{n}"))) for n in range(5)
    ]
    await far.started.wait()
    await transport.close()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["IPC transport is closed"] * 5
    assert all(isinstance(outcome, RuntimeClosed) for outcome in outcomes)
    far.gate.set()
    await server.close()
    await far.runtime.close()


async def test_h13_ipc_failures_arrive_as_worker_invocation_failed(tmp_path):
    far = Far()
    server = await serve_ipc(far.runtime, path=tmp_path / "s.sock", max_body_bytes=1000)
    transport = IpcTransport(id="t", path=server.path, max_body_bytes=100_000)
    for document in (
        invocation(far.address, 1, node="A.FAIL"),
        invocation({**far.address, "processId": "forged"}, 1),
        invocation(far.address, 1, payload={}),
    ):
        with pytest.raises(TransportError, match=r"^Worker invocation failed$"):
            await transport.invoke(document)
    # A frame above the server's size ends the connection; the next call makes a new one.
    with pytest.raises(TransportError, match=r"Worker connection was lost|Worker request failed"):
        await transport.invoke(invocation(far.address, "x" * 2000))
    assert (await transport.invoke(invocation(far.address, 5, node="A.ECHO")))["payload"]["value"] == 5
    await transport.close()
    await server.close()
    await far.runtime.close()


async def test_ipc_calls_share_a_connection_and_answers_come_in_any_order(tmp_path):
    far = Far()
    server = await serve_ipc(far.runtime, path=tmp_path / "s.sock")
    transport = IpcTransport(id="t", path=server.path)
    slow = asyncio.create_task(transport.invoke(invocation(far.address, "slow", node="A.WAIT", id="slow")))
    await far.started.wait()
    fast = await asyncio.gather(
        *(transport.invoke(invocation(far.address, n, node="A.ECHO", id=f"f{n}")) for n in range(200))
    )
    assert [answer["payload"]["value"] for answer in fast] == list(range(200))
    assert len(server._connections) == 1
    assert not slow.done()
    far.gate.set()
    assert (await slow)["payload"]["value"] == "slow"
    await transport.close()
    await server.close()
    await far.runtime.close()


@pytest.mark.parametrize(
    "garbage", [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02{", b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_ipc_garbage_ends_only_its_own_connection(tmp_path, garbage):
    far = Far()
    server = await serve_ipc(far.runtime, path=tmp_path / "s.sock")
    reader, writer = await asyncio.open_unix_connection(server.path)
    writer.write(garbage)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    transport = IpcTransport(id="t", path=server.path)
    assert (await transport.invoke(invocation(far.address, 1)))["payload"]["value"] == 1
    await transport.close()
    await server.close()
    await far.runtime.close()


async def test_ipc_speaks_in_frames_of_length_and_json(tmp_path):
    far = Far()
    server = await serve_ipc(far.runtime, path=tmp_path / "s.sock")
    reader, writer = await asyncio.open_unix_connection(server.path)
    body = b'{"id":"c1","node":"A.ECHO","target":%s,"payload":{"kind":"inline","value":7}}' % (
        str(far.address).replace("'", '"').encode()
    )
    writer.write(struct.pack(">I", len(body)) + body)
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    assert await reader.readexactly(length) == b'{"invocationId":"c1","payload":{"kind":"inline","value":7}}'
    writer.close()
    await server.close()
    await far.runtime.close()


async def test_the_ipc_socket_is_private_and_replaced_only_when_stale(tmp_path):
    far = Far()
    path = tmp_path / "s.sock"
    server = await serve_ipc(far.runtime, path=path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(DefinitionError, match="Another server"):
        await serve_ipc(far.runtime, path=path)
    await server.close()
    await server.close()
    assert not path.exists()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(os.fspath(path))
    again = await serve_ipc(far.runtime, path=path)
    await again.close()
    path.write_text("mine")
    with pytest.raises(DefinitionError, match="no socket"):
        await serve_ipc(far.runtime, path=path)
    assert path.read_text() == "mine"
    await far.runtime.close()


async def test_nothing_is_left_behind_after_use(link):
    far, near, transport = link
    for value in range(20):
        await near.invoke("A.ECHO", value)
    await near.close()
    await transport.close()
    await far.server.close()
    await asyncio.sleep(0.05)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert left <= far.before


async def test_ipc_between_two_processes(tmp_path):
    path = tmp_path / "s.sock"
    script = textwrap.dedent(
        """
        import asyncio, sys
        from memplane.runtime import create_runtime, define_worker, serve_ipc

        async def double(input, ctx):
            return {"n": input["n"] * 2, "node": ctx.execution.node_id}

        async def main():
            runtime = create_runtime(host_id="local", process_id="child")
            runtime.register(define_worker(type="A", nodes={"A.DOUBLE": double}), id="w")
            server = await serve_ipc(runtime, path=sys.argv[1])
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.read)
            await server.close()
            await runtime.close()

        asyncio.run(main())
        """
    )
    child = subprocess.Popen(  # noqa: ASYNC220 - a real second process, started once
        [sys.executable, "-c", script, os.fspath(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert (await asyncio.to_thread(child.stdout.readline)).strip() == "ready"
        transport = IpcTransport(id="child", path=path)
        runtime = create_runtime(transports=[transport])
        address = {"workerId": "w", "workerType": "A", "hostId": "local", "processId": "child"}
        runtime.register_remote(address=address, capabilities=["A.DOUBLE"], transport_id="child")
        plan = graph("g").node("n", "A.DOUBLE", [], lambda v: {"n": v})
        assert (await runtime.run(plan, 21))["n"] == {"n": 42, "node": "n"}
        call = asyncio.create_task(runtime.invoke("A.DOUBLE", {"n": 1}))
        child.kill()
        await asyncio.gather(call, return_exceptions=True)  # it may have been answered before the kill
        child.wait()
        with pytest.raises(TransportError):
            await runtime.invoke("A.DOUBLE", {"n": 1})
        await runtime.close()
        await transport.close()
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


async def test_no_socket_thread_or_task_is_left_behind(tmp_path):
    def held():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(asyncio.all_tasks())

    async def use(number):
        far = Far()
        over_http = await serve_http(far.runtime, token=TOKEN)
        over_socket = await serve_ipc(far.runtime, path=tmp_path / f"{number}.sock")
        transports = [
            HttpTransport(id="http", url=over_http.url, token=TOKEN),
            IpcTransport(id="ipc", path=over_socket.path),
        ]
        near = create_runtime(transports=transports)
        near.register_remote(address=far.address, capabilities=["A.ECHO", "A.WAIT"], transport_id="http")
        near.register_remote(address={**far.address, "workerId": "other"}, capabilities=["B.ECHO"], transport_id="ipc")
        await asyncio.gather(*(near.invoke("A.ECHO", n) for n in range(30)))
        with pytest.raises(TransportError):
            await near.invoke("B.ECHO", 1)  # not the address of a worker there
        abandoned = asyncio.create_task(near.invoke("A.WAIT", 1))
        await far.started.wait()
        abandoned.cancel()
        await asyncio.gather(abandoned, return_exceptions=True)
        far.gate.set()
        for closing in (near, *transports, over_http, over_socket, far.runtime):
            await closing.close()

    await use(0)  # whatever is made once per process
    before = held()
    for number in range(1, 4):
        await use(number)
    await asyncio.sleep(0.05)
    assert held() == before
