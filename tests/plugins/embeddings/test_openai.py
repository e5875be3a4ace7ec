"""R-33: embeddings over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr, ValidationError

from memplane.errors import RetrievalError, SettingsError
from memplane.plugins.embeddings.openai import OpenAIEmbedding, OpenAISettings
from memplane.plugins.registry import Resources, create_embedding
from memplane.signal import Signal, SignalAborted

KEY = "sk-very-secret"


def rows(*vectors: list[Any]) -> dict[str, Any]:
    return {"data": [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]}


class Endpoint:
    def __init__(self, answer: Callable[[httpx.Request], httpx.Response] | dict[str, Any]) -> None:
        self.answer = answer
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answer(request) if callable(self.answer) else httpx.Response(200, json=self.answer)


def provider(endpoint: Endpoint, *, sandbox: Any = None, **settings: Any) -> OpenAIEmbedding:
    values = {"base_url": "http://models.test/v1/", "model": "m", "dimensions": 2, "api_key": KEY} | settings
    return OpenAIEmbedding(
        OpenAISettings.model_validate(values), sandbox=sandbox, transport=httpx.MockTransport(endpoint)
    )


async def failure(made: OpenAIEmbedding, contents: list[str]) -> RetrievalError:
    with pytest.raises(RetrievalError) as caught:
        await made.embed(contents, purpose="document")
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value.__cause__)
    return caught.value


async def test_r33_request_and_reordering() -> None:
    answer = {"data": [{"index": 1, "embedding": [3, 4]}, {"index": 0, "embedding": [1, 2]}]}
    endpoint = Endpoint(answer)
    assert await provider(endpoint).embed(["a", "b"], purpose="document") == [[1, 2], [3, 4]]
    [request] = endpoint.requests
    assert (request.method, str(request.url)) == ("POST", "http://models.test/v1/embeddings")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert json.loads(request.content) == {"model": "m", "input": ["a", "b"], "encoding_format": "float"}


@pytest.mark.parametrize(
    "answer",
    [
        {"data": [{"index": 0, "embedding": [1, 2]}, {"index": 0, "embedding": [1, 2]}]},
        {"data": [{"index": 0, "embedding": [1, 2]}, {"index": 2, "embedding": [1, 2]}]},
        {"data": [{"index": True, "embedding": [1, 2]}, {"index": 0, "embedding": [1, 2]}]},
        rows([1, 2]),
        rows([1, 2], [1]),
        rows([1, 2], []),
        rows([1, 2], ["1", "2"]),
        {"data": [None, None]},
        {"data": {}},
        [],
    ],
)
async def test_r33_an_unusable_answer_is_an_invalid_embedding(answer: Any) -> None:
    endpoint = Endpoint(lambda request: httpx.Response(200, json=answer))
    assert (await failure(provider(endpoint), ["a", "b"])).code == "RETRIEVAL_INVALID_EMBEDDING"


async def test_r33_an_answer_that_is_no_json() -> None:
    endpoint = Endpoint(lambda request: httpx.Response(200, text=f"<html>{KEY}"))
    assert (await failure(provider(endpoint), ["a"])).code == "RETRIEVAL_INVALID_EMBEDDING"


@pytest.mark.parametrize("status", [301, 400, 401, 404, 422, 429, 500])
async def test_r33_an_http_status_is_a_backend_error_without_retry(status: int) -> None:
    endpoint = Endpoint(lambda request: httpx.Response(status, text=KEY, headers={"location": "http://else.test/"}))
    error = await failure(provider(endpoint), ["a"])
    assert (error.code, error.message) == ("RETRIEVAL_BACKEND_ERROR", f"Embedding provider returned HTTP {status}")
    assert error.outage is (status not in (400, 422))
    assert len(endpoint.requests) == 1


async def test_r33_a_sandbox_refusal_sends_nothing() -> None:
    asked: list[str] = []

    class Refusing:
        def check_network(self, origin: str) -> None:
            asked.append(origin)
            raise PermissionError(KEY)

    endpoint = Endpoint(rows([1, 2]))
    error = await failure(provider(endpoint, sandbox=Refusing(), base_url="http://models.test:81/v1"), ["a"])
    assert error.code == "RETRIEVAL_PERMISSION_DENIED"
    assert asked == ["http://models.test:81"]
    assert endpoint.requests == []


async def test_r33_timeouts_and_lost_connections_have_codes_of_their_own() -> None:
    def slow(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout(KEY, request=request)

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(KEY, request=request)

    for answer, code in ((slow, "RETRIEVAL_TIMEOUT"), (gone, "RETRIEVAL_BACKEND_ERROR")):
        error = await failure(provider(Endpoint(answer)), ["a"])
        assert (error.code, error.outage) == (code, True)


async def test_a_real_timeout_ends_the_call() -> None:
    closed = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = OpenAISettings(base_url=f"http://127.0.0.1:{port}", model="m", dimensions=2, timeout_seconds=0.2)
    made = OpenAIEmbedding(settings)
    assert (await failure(made, ["a"])).code == "RETRIEVAL_TIMEOUT"
    await made.close()
    await closed.wait()
    server.close()
    await server.wait_closed()


async def test_an_abort_ends_the_call_with_its_reason() -> None:
    signal = Signal()

    async def never(request: httpx.Request) -> httpx.Response:
        signal.abort()
        await asyncio.Event().wait()
        raise AssertionError

    settings = OpenAISettings(base_url="http://models.test", model="m", dimensions=2)
    made = OpenAIEmbedding(settings, transport=httpx.MockTransport(never))
    with pytest.raises(SignalAborted):
        await made.embed(["a"], purpose="query", signal=signal)
    with pytest.raises(SignalAborted):
        await made.embed([], purpose="query", signal=signal)


async def test_the_key_file_is_read_again_for_every_request(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("first\n")
    endpoint = Endpoint(rows([1, 2]))
    made = provider(endpoint, api_key=None, api_key_file=path)
    await made.embed(["a"], purpose="document")
    path.write_text("second")
    await made.embed(["a"], purpose="document")
    assert [request.headers["authorization"] for request in endpoint.requests] == ["Bearer first", "Bearer second"]
    path.unlink()
    error = await failure(made, ["a"])
    assert (error.message, error.outage) == ("Embedding provider's key file cannot be read", True)


async def test_without_a_key_no_authorization_is_sent_and_texts_are_prepared() -> None:
    endpoint = Endpoint(rows([1, 2], [3, 4]))
    made = provider(endpoint, api_key=None, max_characters=3, query_prefix="query: ", request_dimensions=True)
    await made.embed(["abcdef", ""], purpose="query")
    [request] = endpoint.requests
    assert "authorization" not in request.headers
    body = json.loads(request.content)
    assert body["input"] == ["query: abc", "query:  "]
    assert body["dimensions"] == 2


async def test_a_key_that_cannot_be_a_header_is_an_error_without_the_key() -> None:
    made = provider(Endpoint(rows([1, 2])), api_key=f"{KEY}\r\nx: y")
    assert (await failure(made, ["a"])).code == "RETRIEVAL_BACKEND_ERROR"


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://u:p@host/v1", "models.test/v1", "http://h/v1?key=1", ""])
def test_only_plain_http_urls_are_accepted(url: str) -> None:
    with pytest.raises(ValidationError):
        OpenAISettings(base_url=url, model="m", dimensions=2)


def test_options_are_checked_and_the_key_is_hidden() -> None:
    with pytest.raises(SettingsError) as caught:
        create_embedding("openai", {"model": "m", "dimensions": "x", "api_key": KEY, "unknown": 1}, Resources())
    assert KEY not in str(caught.value)
    assert "dimensions" in str(caught.value)
    assert "unknown" in str(caught.value)
    assert KEY not in repr(OpenAISettings(model="m", dimensions=1, api_key=SecretStr(KEY)))
