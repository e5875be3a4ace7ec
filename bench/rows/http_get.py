"""HTTP GET of one memory, p50, beside an empty FastAPI endpoint with the same authentication.

Both servers are processes of their own; one client on one kept connection asks them in turn, in blocks.
"""

from __future__ import annotations

import json
import random
import time

from tests.stack.process import free_port

from bench.frame import Bench, Result, median, percentile, verify
from bench.load import populate
from bench.processes import deployment
from bench.wire import Client, post
from memplane.outbox.events import Target

NAME = "http-get"
TITLE = "HTTP GET by id, p50"
BLOCK = 200


async def run(bench: Bench) -> Result:
    memories, blocks = bench.size(10_000, 500), bench.size(15, 2)
    async with bench.database() as database:
        ids = await populate(database, memories, [Target.LTM_CACHE])
        async with deployment(bench, database, projections=False) as product:
            peer_port = free_port()
            await product.start("serve")
            await product.start_python("-m", "bench.empty_endpoint", str(peer_port), str(product.keys_file))
            await product.serving()
            await product.ready(peer_port, "/livez")
            ours, theirs = await Client.connect(product.port), await Client.connect(peer_port)
            generator = random.Random(3)
            empty = post("/empty", {"ids": ["1"]}, product.headers)
            product_times: list[float] = []
            peer_times: list[float] = []
            for block in range(blocks + 1):
                wanted = generator.choices(ids, k=BLOCK)
                requests = [post("/v1/nodes/MEMORY.GET", {"ids": [str(one)]}, product.headers) for one in wanted]
                got, times = await _timed(ours, requests)
                for one, answer in zip(wanted, got, strict=True):
                    item = json.loads(answer)["output"][0]
                    verify(item["id"] == str(one) and len(item["content"]) > 400, "GET gave another memory")
                _, others = await _timed(theirs, [empty] * BLOCK)
                if block:  # the first one warms both up
                    product_times += times
                    peer_times += others
            ours.close()
            theirs.close()
    bench.say(f"p99 {1000 * percentile(product_times, 0.99):.2f} ms, peer {1000 * percentile(peer_times, 0.99):.2f} ms")
    return Result(
        TITLE, 1000 * median(product_times), "ms", False, 1000 * median(peer_times), "empty FastAPI endpoint", 2.0
    )


async def _timed(client: Client, requests: list[bytes]) -> tuple[list[bytes], list[float]]:
    answers, times = [], []
    for request in requests:
        started = time.perf_counter()
        status, body = await client.send(request)
        times.append(time.perf_counter() - started)
        verify(status == 200, f"a request was answered {status}: {body[:200]!r}")
        answers.append(body)
    return answers, times
