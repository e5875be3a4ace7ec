"""Embedding batches: is a remote provider kept busy, within its bound, with every vector at its place?

The provider is an HTTP endpoint of the OpenAI form that works on `CAPACITY` requests at a time and takes `SECONDS` for
each, as a model behind a queue does. `embed_contents` with as many batches in flight is put beside the plainest client
of the same endpoint that never lets it idle: the same requests over the same HTTP library behind a semaphore, vectors
taken as they come. The note says which share of the provider's capacity was used.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx

from bench.frame import DIMENSIONS, Bench, Result, median, verify
from bench.wire import whole_body
from memplane.plugins.embeddings.openai import OpenAIEmbedding, OpenAISettings
from memplane.retrieval import embed_contents
from memplane.runtime.transports.http_server import serve_app

NAME = "embeddings"
TITLE = "embedding batches: a remote provider kept busy"
CAPACITY = 8
SECONDS = 0.1
BATCH = 64


class Model:
    """The endpoint. A text's vector starts with the text's number, so that one at a wrong place is seen."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(CAPACITY)
        self._tail = ",0.5" * (DIMENSIONS - 1)
        self._asked = 0
        self.most = 0
        self.worked = 0.0

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        body = await whole_body(receive)
        self._asked += 1
        self.most = max(self.most, self._asked)
        async with self._slots:
            await asyncio.sleep(SECONDS)
            self.worked += SECONDS
        self._asked -= 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": self._answer(json.loads(body)["input"])})

    def _answer(self, texts: Sequence[str]) -> bytes:
        vectors = (
            f'{{"index":{index},"embedding":[{text.partition(" ")[0]}.0{self._tail}]}}'
            for index, text in enumerate(texts)
        )
        return f'{{"data":[{",".join(vectors)}]}}'.encode()


async def run(bench: Bench) -> Result:
    texts = [f"{number} " + "what a memory says about its day " * 15 for number in range(bench.size(64, 16) * BATCH)]
    model = Model()
    server = await serve_app(model)
    provider = OpenAIEmbedding(OpenAISettings(base_url=server.url, model="m", dimensions=DIMENSIONS))
    ours: list[float] = []
    theirs: list[float] = []
    used = 0.0
    for _ in range(bench.size(5, 1)):
        model.most, model.worked = 0, 0.0
        seconds, numbers = await _product(provider, texts)
        ours.append(len(texts) / seconds)
        used = model.worked / (CAPACITY * seconds)
        verify(numbers == list(range(len(texts))), "a vector is not at its text's place")
        verify(model.most == CAPACITY, f"{model.most} requests were in flight instead of {CAPACITY}")
        seconds, numbers = await _plain(server.url, texts)
        theirs.append(len(texts) / seconds)
        verify(numbers == list(range(len(texts))), "the peer's vectors are out of order")
    await provider.close()
    await server.close()
    peer = f"httpx, {CAPACITY} in flight, unchecked"
    note = f"{used:.0%} of the provider's time used"
    return Result("embeddings, remote", median(ours), "texts/s", True, median(theirs), peer, None, note)


async def _product(provider: OpenAIEmbedding, texts: Sequence[str]) -> tuple[float, list[int]]:
    started = time.perf_counter()
    vectors = await embed_contents(provider, texts, BATCH, concurrency=CAPACITY)
    return time.perf_counter() - started, [int(vector[0]) for vector in vectors]


async def _plain(url: str, texts: Sequence[str]) -> tuple[float, list[int]]:
    slots = asyncio.Semaphore(CAPACITY)
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:

        async def ask(batch: Sequence[str]) -> list[int]:
            async with slots:
                body = {"model": "m", "input": batch, "encoding_format": "float"}
                data = (await client.post(f"{url}/embeddings", json=body)).json()["data"]
            return [int(row["embedding"][0]) for row in data]

        started = time.perf_counter()
        answers = await asyncio.gather(*(ask(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)))
        return time.perf_counter() - started, [number for answer in answers for number in answer]
