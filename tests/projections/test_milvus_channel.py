"""A channel is never closed under a call, takes none once it is retired, and finds a server that comes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from memplane.errors import TargetUnavailable
from memplane.projections.milvus_channel import MilvusChannel
from memplane.projections.milvus_client import MilvusConnection
from memplane.settings import MilvusSettings


class EmptyAnswers(grpc.GenericRpcHandler):
    """Answers every call with an empty message, which reads as success, once it is let."""

    def __init__(self) -> None:
        self.called, self.let = threading.Event(), threading.Event()
        self.let.set()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.called.set()
            self.let.wait(10)
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


def serve(handler: grpc.GenericRpcHandler, port: int = 0) -> tuple[grpc.Server, int]:
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((handler,))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server, bound


@pytest.fixture
def answers() -> EmptyAnswers:
    return EmptyAnswers()


@pytest.fixture
def port(answers: EmptyAnswers) -> Iterator[int]:
    server, port = serve(answers)
    yield port
    answers.let.set()
    server.stop(0).wait()


class Closes:
    """Counts how often the client below a channel is closed."""

    def __init__(self, channel: MilvusChannel) -> None:
        self.count, self._close, self.closed = 0, channel._client.close, threading.Event()
        channel._client.close = self

    def __call__(self) -> None:
        self.count += 1
        self._close()
        self.closed.set()


def test_a_retired_channel_is_closed_by_the_last_call_that_leaves_it(port: int) -> None:
    channel = MilvusChannel(f"http://127.0.0.1:{port}", "", "", 5)
    closes = Closes(channel)
    with channel.calling() as client:
        with channel.calling():
            assert not channel.retire()
            with pytest.raises(TargetUnavailable), channel.calling():
                pytest.fail("a retired channel took a call")
        assert client.list_collections(timeout=5) == []
        assert closes.count == 0
    assert closes.count == 1
    assert not channel.retire()


def test_an_idle_channel_is_closed_by_who_retires_it(port: int) -> None:
    channel = MilvusChannel(f"http://127.0.0.1:{port}", "", "", 5)
    closes = Closes(channel)
    assert channel.retire()
    channel.close()
    assert closes.count == 1


async def test_a_call_that_outlives_its_caller_keeps_the_channel_open(answers: EmptyAnswers, port: int) -> None:
    connection = MilvusConnection(MilvusSettings(uri=f"http://127.0.0.1:{port}", timeout=5))
    await connection.open()
    assert connection._channel is not None
    closes = Closes(connection._channel)
    answers.let.clear()
    answers.called.clear()
    calling = asyncio.create_task(connection.call("list_collections"))
    await asyncio.to_thread(answers.called.wait, 5)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await connection.close()
    assert closes.count == 0
    answers.let.set()
    assert await asyncio.to_thread(closes.closed.wait, 10)


async def test_a_server_that_comes_back_is_found_by_the_same_channel() -> None:
    server, port = serve(EmptyAnswers())
    connection = MilvusConnection(MilvusSettings(uri=f"http://127.0.0.1:{port}", timeout=2))
    await connection.open()
    channel = connection._channel
    await asyncio.to_thread(server.stop(0).wait)
    assert not await connection.healthy()
    server, _ = await asyncio.to_thread(serve, EmptyAnswers(), port)
    assert await connection.healthy()
    assert connection._channel is channel
    await connection.close()
    await asyncio.to_thread(server.stop(0).wait)
