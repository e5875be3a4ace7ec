"""Structured logs: one object a line, the ids of the seed, no driver texts."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from memplane.api.logs import set_up_logs
from memplane.api.request_context import RequestContext, current_request, request_context
from memplane.errors import TargetUnavailable
from memplane.settings import LogSettings


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.StringIO()
    set_up_logs(LogSettings(), written)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_the_fields_of_the_seed(stream: io.StringIO) -> None:
    ids = {"event_id": "e", "memory_id": 7, "user_id": "用户", "version": 3, "target": "milvus", "attempts": 2}
    token = current_request.set(RequestContext("request-1", "a" * 32))
    logging.getLogger("memplane.test").info("done\nin two lines", extra=ids)
    current_request.reset(token)
    logging.getLogger("memplane.test").info("outside")
    inside, outside = lines(stream)
    assert {name: inside[name] for name in ids} == ids
    assert (inside["request_id"], inside["trace_id"]) == ("request-1", "a" * 32)
    assert (inside["level"], inside["logger"], inside["message"]) == ("INFO", "memplane.test", "done\nin two lines")
    assert "request_id" not in outside


def test_exceptions_of_others_show_their_class_alone(stream: io.StringIO) -> None:
    for error in (ValueError("password=secret"), TargetUnavailable("milvus", "it does not answer")):
        try:
            raise error
        except (ValueError, TargetUnavailable):
            logging.getLogger("x").exception("it failed")
    foreign, ours = lines(stream)
    assert foreign["error"] == "ValueError"
    assert "secret" not in json.dumps(foreign["message"]) + str(foreign["error"])
    assert "test_logs.py" in str(foreign["stack"])
    assert ours["error"] == "TargetUnavailable: milvus is unavailable: it does not answer"


def test_drivers_are_quiet(stream: io.StringIO) -> None:
    for name in ("pymilvus", "neo4j.pool", "httpx", "grpc"):
        logging.getLogger(name).error("token=secret")
    logging.getLogger("uvicorn.error").info("Started server process")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("header", "trace"),
    [
        (b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", "a" * 32),
        (b"00-" + b"0" * 32 + b"-" + b"b" * 16 + b"-01", None),
        (b"00-" + b"a" * 32 + b"-" + b"0" * 16 + b"-01", None),
        (b"00-" + b"A" * 32 + b"-" + b"b" * 16 + b"-01", None),
        (b"nonsense", None),
        (b"", None),
    ],
)
def test_trace_context(header: bytes, trace: str | None) -> None:
    context = request_context({b"traceparent": header})
    assert context.trace_id == trace
    assert (context.traceparent is None) is (trace is None)


@pytest.mark.parametrize(
    ("given", "same"), [(b"", True), (b"c" * 32, True), (b"request-7", False), (b"0" * 32, False), (b"C" * 32, False)]
)
def test_a_request_without_trace_context_is_traced_by_its_own_id(given: bytes, same: bool) -> None:
    context = request_context({b"x-request-id": given})
    context.ensure_trace()
    assert context.traceparent is not None
    version, trace_id, span_id, flags = context.traceparent.split("-")
    assert (version, flags, trace_id) == ("00", "00", context.trace_id)
    assert (trace_id == context.request_id) is same
    assert (len(trace_id), len(span_id)) == (32, 16)
    before = context.traceparent
    context.ensure_trace()
    assert context.traceparent == before
