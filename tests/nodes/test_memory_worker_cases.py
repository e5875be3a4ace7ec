"""Cases M-60 to M-62 and M-65 as far as they need no running runtime: the worker's definition and its handlers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.nodes.fakes import SearchingStore

from memplane.contracts import NODES, NodeResult
from memplane.nodes import (
    InvalidDefaults,
    create_memory_worker,
    memory_delete_node,
    memory_get_node,
    memory_query_node,
    memory_search_node,
    memory_update_node,
    memory_write_node,
)
from memplane.runtime import DefinitionError, WorkerContext, define_worker
from memplane.signal import Signal


def context(signal: Signal | None = None, config: Any = None) -> WorkerContext:
    return cast(WorkerContext, SimpleNamespace(signal=signal, services={"config": config, "sandbox": None}))


def test_m61_the_worker_has_type_memory_and_the_six_nodes() -> None:
    worker = create_memory_worker(store=SearchingStore(), concurrency=16)
    assert worker.type == "MEMORY"
    assert tuple(worker.nodes) == NODES
    assert worker.expose == NODES
    assert worker.concurrency == 16
    assert worker.dispose is None
    assert worker.resources is None


@pytest.mark.parametrize("concurrency", [0, 1.5, -1, True, "1"])
def test_m62_concurrency_is_a_positive_integer(concurrency: Any) -> None:
    with pytest.raises(DefinitionError, match="Worker concurrency must be a positive integer"):
        create_memory_worker(store=SearchingStore(), concurrency=concurrency)


def test_m50_the_workers_defaults_are_checked_at_construction() -> None:
    with pytest.raises(InvalidDefaults, match=r"searchLimit must be an integer in 1\.\.10000"):
        create_memory_worker(store=SearchingStore(), defaults={"searchLimit": 1.5})


async def test_m60_inside_a_worker_the_plugin_gets_runtime_and_signal() -> None:
    store = SearchingStore(query={"items": []})
    worker = create_memory_worker(store=store)
    for signal in (None, Signal()):
        ctx = context(signal)
        result = await worker.nodes["MEMORY.QUERY"]({}, ctx)
        assert isinstance(result, NodeResult)
        assert result.node == "MEMORY.QUERY"
        _, _, options = store.calls[-1]
        assert options.runtime is ctx
        assert options.signal is signal


async def test_m52_the_runtimes_yaml_ranks_below_the_factorys_defaults() -> None:
    store = SearchingStore(query={"items": []}, search=[])
    worker = create_memory_worker(store=store, defaults={"queryLimit": 4})
    config = SimpleNamespace(memory={"queryLimit": 3, "searchLimit": 2})
    await worker.nodes["MEMORY.QUERY"]({}, context(config=config))
    await worker.nodes["MEMORY.SEARCH"]({"query": "x"}, context(config=config))
    await worker.nodes["MEMORY.SEARCH"]({"query": "x"}, context())
    assert [seen["limit"] for _, seen, _ in store.calls] == [4, 2, 10]


async def test_m65_descriptors_name_their_node_and_define_replacements() -> None:
    descriptors = [
        memory_get_node,
        memory_query_node,
        memory_search_node,
        memory_write_node,
        memory_update_node,
        memory_delete_node,
    ]
    assert tuple(descriptor.type for descriptor in descriptors) == NODES

    async def custom(input: Any, ctx: Any) -> str:
        return "custom"

    worker = define_worker(type="MEMORY", nodes={"MEMORY.GET": memory_get_node.define("MEMORY", custom)})
    assert await worker.nodes["MEMORY.GET"]({}, context()) == "custom"
    with pytest.raises(DefinitionError):
        define_worker(type="OTHER", nodes={"MEMORY.GET": memory_get_node.define("MEMORY", custom)})
