"""One trace from the caller to both projections, over three processes; the ids on every line of a worker's log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from memplane.outbox.logs import EVENT_FIELDS
from memplane.settings import LogSettings, Settings, TracingSettings
from tests.http.processes import Child, child, wait_ready, write_settings
from tests.http.world import Keys, drop, keys, settings
from tests.tracing.collector import Collector, Received, collecting

__all__ = ["keys", "settings"]

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def until(condition: Callable[[], bool], shown: object = None, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, shown
        time.sleep(0.1)


def write(service: Child, key: str, **headers: str) -> httpx.Response:
    document = {"memories": [{"content": "a green parrot"}]}
    headers = {"Authorization": f"Bearer {key}", **headers}
    answer = httpx.post(f"{service.url}/v1/nodes/MEMORY.WRITE", json=document, headers=headers, timeout=20)
    assert answer.json()["status"] == "success"
    return answer


def only(spans: list[Received], name: str) -> Received:
    (found,) = [span for span in spans if span.name == name]
    return found


def test_a_write_and_its_projections_are_one_trace(
    settings: Settings, keys: Keys, collector: Collector, tmp_path: Path
) -> None:
    traced = settings.model_copy(
        update={"tracing": TracingSettings(endpoint=collector.url), "log": LogSettings(level="DEBUG")}
    )
    config = write_settings(traced, tmp_path / "settings.yaml")
    with (
        child(config, tmp_path / "serve.log", "serve") as service,
        child(config, tmp_path / "milvus.log", "worker", "milvus") as milvus,
        child(config, tmp_path / "neo4j.log", "worker", "neo4j") as neo4j,
    ):
        wait_ready(service.url)
        answer = write(service, keys["ann"], traceparent=f"00-{TRACE}-{CALLER}-01", **{"X-Request-Id": "request-7"})
        memory = answer.json()["output"][0]
        names = {"MEMORY.WRITE", "upsert_memory_vector", "upsert_memory_graph_node"}
        until(lambda: {span.name for span in collector.spans if span.trace == TRACE} >= names, collector.spans)
        for process in (milvus, neo4j, service):
            assert process.end() == 0
    asyncio.run(drop(settings))

    call = only(collector.spans, "MEMORY.WRITE")
    assert (call.service, call.trace, call.parent) == ("memplane-service", TRACE, CALLER)
    assert call.attributes["memplane.request_id"] == "request-7"
    assert call.attributes["memplane.status"] == "success"
    for name, target in (("upsert_memory_vector", "milvus"), ("upsert_memory_graph_node", "neo4j")):
        event = only(collector.spans, name)
        assert (event.service, event.trace, event.parent) == (f"memplane-{target}-worker", TRACE, call.id)
        assert event.attributes["memplane.memory_id"] == int(memory["id"])
        assert event.attributes["memplane.outcome"] == "applied"
        assert event.began < event.ended
        batch = only(collector.spans, f"project a batch to {target}")
        assert batch.trace != TRACE, "a batch belongs to many requests"
        assert (batch.links, event.links) == ([call.id], [batch.id])

    for process, target in ((milvus, "milvus"), (neo4j, "neo4j")):
        lines = process.lines()
        assert all(set(EVENT_FIELDS) <= set(line) for line in lines), process.log.read_text()
        (line,) = [line for line in lines if line["message"] == "event processed"]
        assert line["event_id"] == only_event(collector, target).attributes["memplane.event_id"]
        assert {name: line[name] for name in EVENT_FIELDS if name != "event_id"} == {
            "memory_id": int(memory["id"]),
            "user_id": "ann",
            "version": 1,
            "target": target,
            "attempts": 0,
            "trace_id": TRACE,
        }


def only_event(collector: Collector, target: str) -> Received:
    name = "upsert_memory_vector" if target == "milvus" else "upsert_memory_graph_node"
    return only(collector.spans, name)


def test_without_a_collector_the_ids_still_join_the_logs(settings: Settings, keys: Keys, tmp_path: Path) -> None:
    """A caller that sends no trace context finds its request id as trace id in the worker's log; nothing is sent."""
    quiet = settings.model_copy(update={"log": LogSettings(level="DEBUG")})
    config = write_settings(quiet, tmp_path / "settings.yaml")
    with (
        child(config, tmp_path / "serve.log", "serve") as service,
        child(config, tmp_path / "neo4j.log", "worker", "neo4j") as worker,
    ):
        wait_ready(service.url)
        request_id = write(service, keys["ann"]).headers["x-request-id"]
        until(lambda: any(line["message"] == "event processed" for line in worker.lines()))
        (line,) = [line for line in worker.lines() if line["message"] == "event processed"]
        assert line["trace_id"] == request_id
    asyncio.run(drop(settings))
