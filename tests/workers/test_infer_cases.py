"""INFER.REASONING.SAMPLE: I-01 … I-10."""

# ruff: noqa: E501 - a case is easier to read on one line
from __future__ import annotations

import asyncio
import json

import pytest

from memplane.errors import PluginError
from memplane.runtime import DefinitionError, create_runtime, load_runtime_config
from memplane.signal import Signal
from memplane.workers import OpenAIChatProvider, create_infer, create_infer_worker

ANSWER = {"message": {"role": "assistant", "content": "hi"}, "finishReason": "stop"}
MESSAGES = [{"role": "user", "content": "hello"}]
ACTION = {"name": "search", "inputSchema": {"type": "object"}, "targetNode": "MEMORY.SEARCH"}


def request(**more):
    return {"messages": MESSAGES, "model": {"model": "m"}, **more}


class Provider:
    def __init__(self, answer=None):
        self.answer = ANSWER if answer is None else answer
        self.seen = []

    async def invoke(self, input, options):
        self.seen.append((input, options))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def infer_of(provider, **options):
    return create_infer(providers={"p": provider}, **options)


async def failed(result, code, status="failed"):
    outcome = await result
    assert (outcome.status, outcome.error.code, outcome.output) == (status, code, None)
    return outcome.error.message


async def test_i01_success_and_the_request_reach_the_provider_unchanged():
    provider = Provider({**ANSWER, "usage": {"inputTokens": 3, "outputTokens": 0}, "raw": "dropped"})
    given = request(generation={"temperature": 0}, metadata={"trace": "t"}, actions=[ACTION])
    result = await infer_of(provider).sample(given)
    assert result.node == "INFER.REASONING.SAMPLE"
    assert result.unwrap() == {**ANSWER, "usage": {"inputTokens": 3, "outputTokens": 0}}
    assert provider.seen[0][0] == given


@pytest.mark.parametrize(
    "bad",
    [
        None, [], {}, {"messages": MESSAGES}, request(messages=[]), request(messages="x"), request(model={}),
        request(model={"model": " "}), request(model="m"), request(messages=[{"role": "boss", "content": "x"}]),
        request(messages=[{"role": "user", "content": {"a": 1}}]), request(messages=[{"role": "user"}]),
        request(messages=[None]), request(generation={"temperature": float("nan")}), request(generation={"temperature": 2.1}),
        request(generation={"temperature": -0.1}), request(generation={"topP": 1.1}), request(generation={"maxTokens": 0}),
        request(generation={"topK": 0}), request(generation={"seed": 1.5}), request(generation={"stop": [""]}),
        request(generation=[]), request(generation={"typo": 1}), request(actions={}), request(actions=[{"name": "a"}]),
        request(actions=[ACTION, ACTION]), request(metadata=[]), request(model={"model": "m", "provider": ""}),
    ],
)  # fmt: skip
async def test_i02_bad_input_never_reaches_the_provider(bad):
    provider = Provider()
    await failed(infer_of(provider).sample(bad), "INVALID_INPUT")
    assert provider.seen == []


async def test_i02_content_may_be_a_list():
    assert (
        await infer_of(Provider()).sample(request(messages=[{"role": "user", "content": [{"type": "text"}]}]))
    ).output


async def test_i03_the_provider_is_named_or_default_or_the_only_one():
    first, second = Provider(), Provider()
    both = {"a": first, "b": second}
    await create_infer(providers=both, default_provider="b").sample(request())
    await create_infer(providers=both, default_provider="b").sample(request(model={"model": "m", "provider": "a"}))
    await create_infer(providers={"a": first}).sample(request())
    assert (len(first.seen), len(second.seen)) == (2, 1)
    await failed(create_infer(providers=both).sample(request()), "PROVIDER_NOT_FOUND")
    await failed(create_infer(providers={}).sample(request()), "PROVIDER_NOT_FOUND")
    await failed(infer_of(first).sample(request(model={"model": "m", "provider": "zz"})), "PROVIDER_NOT_FOUND")
    with pytest.raises(DefinitionError):
        create_infer(providers=both, default_provider="zz")


@pytest.mark.parametrize(
    "answer",
    [
        [], "text", {}, {**ANSWER, "message": {"role": "user", "content": "x"}}, {**ANSWER, "message": "x"},
        {**ANSWER, "message": {"role": "assistant", "content": None}}, {**ANSWER, "finishReason": "odd"},
        {**ANSWER, "usage": {"inputTokens": -1}}, {**ANSWER, "usage": {"inputTokens": 1.5}}, {**ANSWER, "usage": None},
        {**ANSWER, "finishReason": "action_request"}, {**ANSWER, "finishReason": "action_request", "actionRequests": []},
        {**ANSWER, "actionRequests": [{"id": "1", "name": "search", "arguments": {}}]},
        {**ANSWER, "finishReason": "action_request", "actionRequests": [{"id": "1", "name": "search", "arguments": {}}] * 2},
        {**ANSWER, "finishReason": "action_request", "actionRequests": [{"id": "", "name": "search", "arguments": {}}]},
        {**ANSWER, "finishReason": "action_request", "actionRequests": [{"id": "1", "name": "search", "arguments": "{}"}]},
    ],
)  # fmt: skip
async def test_i04_invalid_outputs(answer):
    await failed(infer_of(Provider(answer)).sample(request(actions=[ACTION])), "INVALID_MODEL_OUTPUT")


async def test_i04_undeclared_actions_and_where_declared_ones_run():
    wanted = {"id": "1", "name": "search", "arguments": {"q": 1}, "targetNode": "EVIL.NODE"}
    answer = {**ANSWER, "finishReason": "action_request", "actionRequests": [wanted]}
    output = (await infer_of(Provider(answer)).sample(request(actions=[ACTION]))).unwrap()
    assert output["actionRequests"] == [{**wanted, "targetNode": "MEMORY.SEARCH"}]
    await failed(infer_of(Provider(answer)).sample(request()), "UNDECLARED_ACTION")


async def test_i05_finish_reasons():
    assert (await infer_of(Provider({**ANSWER, "finishReason": "length"})).sample(request())).status == "success"
    await failed(
        infer_of(Provider({**ANSWER, "finishReason": "cancelled"})).sample(request()), "CANCELLED", "cancelled"
    )
    await failed(infer_of(Provider({**ANSWER, "finishReason": "error"})).sample(request()), "MODEL_ERROR")


class Slow:
    """Waits for ever; `deaf` also ignores being cancelled, until the test lets it go."""

    def __init__(self, deaf=False):
        self.deaf, self.started, self.cancelled, self.go = deaf, asyncio.Event(), False, asyncio.Event()

    async def invoke(self, input, options):
        self.started.set()
        while True:
            try:
                await self.go.wait()
                return ANSWER
            except asyncio.CancelledError:
                self.cancelled = True
                if not self.deaf:
                    raise


@pytest.mark.parametrize("deaf", [False, True])
async def test_i06_a_deadline_ends_the_wait_even_for_a_deaf_provider(deaf):
    provider = Slow(deaf)
    message = await failed(infer_of(provider).sample(request(), timeout_ms=20), "TIMEOUT", "timeout")
    assert "0.02 s" in message
    assert provider.cancelled
    provider.go.set()
    await asyncio.sleep(0)


async def test_i06_a_caller_cancels_before_or_during():
    provider, signal = Slow(), Signal()
    call = asyncio.create_task(infer_of(provider).sample(request(), signal=signal))
    await provider.started.wait()
    signal.abort()
    await failed(call, "CANCELLED", "cancelled")
    untouched = Provider()
    await failed(infer_of(untouched).sample(None, signal=signal), "CANCELLED", "cancelled")
    assert untouched.seen == []
    assert signal._callbacks == []


async def test_i06_asyncio_cancellation_reaches_the_provider():
    provider = Slow()
    before = asyncio.all_tasks()
    call = asyncio.create_task(infer_of(provider).sample(request()))
    await provider.started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert provider.cancelled
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("timeout", [-1, 0, 1.5, True, 2**31])
async def test_i06_bad_timeouts(timeout):
    await failed(infer_of(Provider()).sample(request(), timeout_ms=timeout), "INVALID_INPUT")
    with pytest.raises(DefinitionError):
        infer_of(Provider(), timeout_ms=timeout)


async def test_i07_an_unclassified_exception_shows_nothing_of_itself(caplog):
    result = await infer_of(Provider(RuntimeError("api key sk-123"))).sample(request())
    assert (result.status, result.error.code, result.error.message) == (
        "failed",
        "EXECUTION_FAILED",
        "Model provider failed",
    )
    assert "sk-123" not in caplog.text + json.dumps(result.as_wire())
    message = await failed(
        infer_of(Provider(PluginError("RATE_LIMITED", "Try later"))).sample(request()), "RATE_LIMITED"
    )
    assert message == "Try later"


async def test_i08_through_the_runtime_the_signal_arrives_and_its_reason_is_raised():
    provider, signal = Slow(), Signal()
    runtime = create_runtime(workers=[create_infer_worker(providers={"p": provider})])
    call = asyncio.create_task(runtime.invoke("INFER.REASONING.SAMPLE", request(), signal=signal))
    await provider.started.wait()
    signal.abort(KeyError("mine"))
    with pytest.raises(KeyError, match="mine"):
        await call
    assert provider.cancelled
    await runtime.close()


async def test_i09_generation_defaults_merge_per_field_and_the_request_wins():
    provider = Provider()
    config = load_runtime_config(
        {}, {"workers": {"infer": {"generation": {"maxTokens": 1, "topP": 0.5, "seed": 1, "stop": ["a"]}}}}
    )
    worker = create_infer_worker(
        providers={"p": provider}, generation={"maxTokens": 2, "temperature": 0.1, "topP": 0.6}
    )
    runtime = create_runtime(config=config, workers=[worker])
    given = request(generation={"maxTokens": 3})
    await runtime.invoke("INFER.REASONING.SAMPLE", given)
    assert provider.seen[0][0]["generation"] == {
        "maxTokens": 3,
        "temperature": 0.1,
        "topP": 0.6,
        "seed": 1,
        "stop": ["a"],
    }
    assert given == request(generation={"maxTokens": 3})
    await runtime.close()
    with pytest.raises(DefinitionError):
        infer_of(provider, generation={"temperature": 3})


async def test_i09_the_runtimes_configuration_gives_provider_and_time():
    slow, other = Slow(), Provider()
    env = {
        "MEMPLANE_SHARED_PROVIDERS": "slow",
        "MEMPLANE_SHARED_PROVIDER_SLOW_BASE_URL": "http://h",
        "MEMPLANE_WORKER_INFER_MODEL_PROVIDER": "slow",
        "MEMPLANE_WORKER_INFER_MODEL": "m",
    }
    config = load_runtime_config(env, {"runtime": {"timeoutMs": 20}})
    runtime = create_runtime(config=config, workers=[create_infer_worker(providers={"slow": slow, "other": other})])
    await failed(runtime.invoke("INFER.REASONING.SAMPLE", request()), "TIMEOUT", "timeout")
    await runtime.close()


class Endpoint:
    """A chat completions endpoint on loopback that records requests and answers what it is told."""

    def __init__(self, status=200, answer=None):
        self.status, self.answer, self.requests = status, answer, []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.origin = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.server.close()
        await self.server.wait_closed()

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")
        )
        self.requests.append((head, json.loads(await reader.readexactly(length))))
        body = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
        writer.write(
            f"HTTP/1.1 {self.status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
        )
        await writer.drain()
        writer.close()


def completion(message=None, finish="stop", **more):
    return {
        "choices": [{"message": message or {"role": "assistant", "content": "hi"}, "finish_reason": finish}],
        **more,
    }


async def call(endpoint, given, **options):
    provider = OpenAIChatProvider(base_url=f"{endpoint.origin}/v1/", api_key="key-1", **options)
    try:
        return await infer_of(provider).sample(given)
    finally:
        await provider.close()


async def test_i10_the_request_of_an_openai_compatible_endpoint():
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "details": None}
    async with Endpoint(answer=completion(usage=usage)) as endpoint:
        given = request(generation={"temperature": 0.5, "topP": 1, "maxTokens": 9, "stop": ["x"], "seed": 1})
        result = await call(endpoint, given, options={"reasoning_effort": "low", "stream": True})
    assert result.unwrap() == {**ANSWER, "usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}}
    ((head, body),) = endpoint.requests
    assert head.startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert "authorization: bearer key-1" in head.lower()
    assert body == {
        "model": "m", "messages": MESSAGES, "stream": False, "n": 1, "temperature": 0.5, "top_p": 1,
        "max_completion_tokens": 9, "stop": ["x"], "seed": 1, "reasoning_effort": "low",
    }  # fmt: skip


async def test_i10_max_tokens_field_actions_and_their_answers():
    calls = [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    async with Endpoint(answer=completion(message, "tool_calls")) as endpoint:
        given = request(generation={"maxTokens": 9}, actions=[ACTION])
        output = (await call(endpoint, given, max_tokens_field="max_tokens")).unwrap()
        assert output["actionRequests"] == [
            {"id": "c1", "name": "search", "arguments": {"q": 1}, "targetNode": "MEMORY.SEARCH"}
        ]
        follow_up = [*MESSAGES, output["message"], {"role": "tool", "content": "found", "metadata": {"callId": "c1"}}]
        await call(endpoint, request(messages=follow_up, actions=[ACTION]))
    assert endpoint.requests[0][1]["max_tokens"] == 9
    assert endpoint.requests[0][1]["tools"] == [
        {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
    ]
    _, assistant, tool = endpoint.requests[1][1]["messages"]
    assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"] == "c1"


@pytest.mark.parametrize(
    ("status", "answer", "code"),
    [
        (401, {"error": "key-1 is wrong"}, "PROVIDER_HTTP_ERROR"),
        (302, {}, "PROVIDER_HTTP_ERROR"),
        (200, {}, "INVALID_MODEL_OUTPUT"),
        (200, b"not json", "INVALID_MODEL_OUTPUT"),
        (200, {"choices": []}, "INVALID_MODEL_OUTPUT"),
        (200, [], "INVALID_MODEL_OUTPUT"),
        (200, completion(finish="content_filter"), "MODEL_ERROR"),
    ],
)
async def test_i10_failures_of_the_endpoint(status, answer, code):
    async with Endpoint(status, answer) as endpoint:
        message = await failed(call(endpoint, request()), code)
    assert "key-1" not in message
    if code == "PROVIDER_HTTP_ERROR":
        assert message == f"Model provider returned HTTP {status}"
    assert len(endpoint.requests) == 1


async def test_i10_endpoints_must_match_and_absent_ones_say_so():
    async with Endpoint(answer=completion()) as endpoint:
        same = request(model={"model": "m", "endpoint": f"{endpoint.origin}/v1"})
        assert (await call(endpoint, same)).status == "success"
        other = request(model={"model": "m", "endpoint": "http://elsewhere/v1"})
        await failed(call(endpoint, other), "ENDPOINT_MISMATCH")
        assert len(endpoint.requests) == 1
    await failed(call(endpoint, request()), "PROVIDER_UNAVAILABLE")


async def test_i10_the_sandbox_is_asked_before_the_network_is_used():
    async with Endpoint(answer=completion()) as endpoint:
        provider = OpenAIChatProvider(base_url=endpoint.origin)
        worker = create_infer_worker(providers={"p": provider})
        refusing = create_runtime(workers=[worker])
        message = await failed(refusing.invoke("INFER.REASONING.SAMPLE", request()), "EXECUTION_FAILED")
        assert message == f"Permission denied: network:{endpoint.origin}"
        assert endpoint.requests == []
        allowing = create_runtime(workers=[worker], sandbox={"network": [endpoint.origin]})
        assert (await allowing.invoke("INFER.REASONING.SAMPLE", request())).status == "success"
        await provider.close()
        await failed(infer_of(provider).sample(request()), "PROVIDER_UNAVAILABLE")


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "ftp://h"}, {"base_url": "nothing"}, {"base_url": "http://u:p@h"}, {"base_url": "http://h?x=1"},
        {"base_url": "http://h", "max_tokens_field": "tokens"}, {"base_url": "http://h", "options": {"x": object()}},
    ],
)  # fmt: skip
def test_i10_a_provider_is_checked_at_construction(options):
    with pytest.raises(DefinitionError):
        OpenAIChatProvider(**options)
