"""What the runtime adds: to an awaited call, to a thousand of them in a graph, and to an HTTP endpoint.

The first two do no input and output: their time is that of the processor, so that other work of the machine does not
count.

- invoke: `runtime.invoke` of a node that returns its input, beside awaiting the same function.
- graph: 1,000 independent nodes, beside 1,000 tasks of the same function in one `asyncio.gather`.
- transport: a remote `runtime.invoke` over `HttpTransport`, beside the same HTTP client asking a bare endpoint on the
  same server; both servers run in this process, one request at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from bench.frame import Bench, Result, median, verify
from bench.wire import whole_body
from memplane.runtime import HttpTransport, WorkerContext, create_runtime, define_worker, graph, serve_http
from memplane.runtime.transports.http_server import serve_app

NAME = "runtime"
TITLE = "runtime: overhead of invoke, graph and HTTP transport"
NODES = 1000
TOKEN = "bench"


async def echo(input: Any, ctx: WorkerContext | None) -> Any:  # noqa: A002 - the public name of a handler's argument
    return input


WORKER = define_worker(type="BENCH", nodes={"BENCH.ECHO": echo})


async def run(bench: Bench) -> list[Result]:
    return [await _invoke(bench), await _graph(bench), await _transport(bench)]


async def _invoke(bench: Bench) -> Result:
    calls, rounds = bench.size(5_000, 500), bench.size(7, 2)
    runtime = create_runtime(workers=[WORKER])
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        ours.append(await _repeat(lambda: runtime.invoke("BENCH.ECHO", 1), calls, time.process_time))
        theirs.append(await _repeat(lambda: echo(1, None), calls, time.process_time))
    await runtime.close()
    note = f"adds {1e6 * (median(ours) - median(theirs)):.1f} µs"
    return Result(
        "invoke in process", 1e6 * median(ours), "µs", False, 1e6 * median(theirs), "awaited call", None, note
    )


async def _graph(bench: Bench) -> Result:
    rounds = bench.size(15, 2)
    runtime = create_runtime(workers=[WORKER])
    plan = graph("bench")
    for number in range(NODES):
        plan = plan.node(f"n{number}", "BENCH.ECHO", [], lambda value: value)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        started = time.process_time()
        outputs = await runtime.run(plan, 7)
        ours.append(time.process_time() - started)
        verify(len(outputs) == NODES and set(outputs.values()) == {7}, "the graph gave other outputs")
        started = time.process_time()
        await asyncio.gather(*(echo(7, None) for _ in range(NODES)))
        theirs.append(time.process_time() - started)
    await runtime.close()
    peer = "gather of 1,000 tasks"
    return Result("graph of 1,000 nodes", 1000 * median(ours), "ms", False, 1000 * median(theirs), peer)


async def _transport(bench: Bench) -> Result:
    calls, rounds = bench.size(200, 20), bench.size(7, 2)
    far = create_runtime(process_id="far")
    address = far.register(WORKER, id="w").address
    server, bare = await serve_http(far, token=TOKEN), await serve_app(_bare)
    transport = HttpTransport(id="t", url=server.url, token=TOKEN)
    near = create_runtime(transports=[transport])
    near.register_remote(address=address, capabilities=["BENCH.ECHO"], transport_id="t")
    document = {"text": "x" * 500}
    ours: list[float] = []
    theirs: list[float] = []
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(rounds):
            ours.append(await _repeat(lambda: near.invoke("BENCH.ECHO", document), calls))
            theirs.append(await _repeat(lambda: client.post(bare.url, json=document), calls))
        verify(await near.invoke("BENCH.ECHO", document) == document, "the transport gave another document")
    await near.close()
    await transport.close()
    await server.close()
    await bare.close()
    await far.close()
    peer = "bare endpoint, same server and client"
    return Result("invoke over HTTP", 1000 * median(ours), "ms", False, 1000 * median(theirs), peer)


async def _repeat(
    call: Callable[[], Awaitable[Any]], times: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds per call."""
    started = clock()
    for _ in range(times):
        await call()
    return (clock() - started) / times


async def _bare(_scope: Any, receive: Any, send: Any) -> None:
    """Reads the body and answers it, without looking."""
    body = await whole_body(receive)
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})
