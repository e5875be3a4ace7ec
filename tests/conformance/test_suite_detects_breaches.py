"""The suite is only worth something if it fails: each broken store below must be caught by the named test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from memplane.conformance import PlatformConformance, StoreConformance
from memplane.conformance.base import Bench
from memplane.contracts import Scope
from memplane.errors import NodeFailed, PluginError
from memplane.plugins.inmemory import InMemoryBackend, InMemoryStore


class Suite(StoreConformance, PlatformConformance):
    __test__ = False


class Leaking(InMemoryBackend):
    """Scopes by tenant alone."""

    def scoped(self, scope: Scope) -> InMemoryStore:
        return super().scoped(Scope(scope.tenant, "everybody"))


class Changing(InMemoryBackend):
    """Gives stores whose methods are replaced by those of `Store`."""

    Store: type[InMemoryStore]

    def scoped(self, scope: Scope) -> InMemoryStore:
        return self.Store(self, scope)


class Trimming(Changing):
    class Store(InMemoryStore):
        async def write(self, input: Any, options: Any) -> Any:
            drafts = [
                {
                    **draft,
                    "content": draft["content"].strip() if isinstance(draft["content"], str) else draft["content"],
                }
                for draft in input["memories"]
            ]
            return await super().write({"memories": drafts}, options)  # type: ignore[typeddict-item]


class OneByOne(Changing):
    """Promises atomic batches and writes entry by entry."""

    class Store(InMemoryStore):
        async def write(self, input: Any, options: Any) -> Any:
            written: list[Any] = []
            for draft in input["memories"]:
                await asyncio.sleep(0)
                written += await super().write({"memories": [draft]}, options)
            return written


class Forgetful(Changing):
    """Ignores expected versions."""

    class Store(InMemoryStore):
        async def update(self, input: Any, options: Any) -> Any:
            entries = [{k: v for k, v in entry.items() if k != "expectedVersion"} for entry in input["memories"]]
            return await super().update({"memories": entries}, options)  # type: ignore[typeddict-item]


class Upserting(Changing):
    """Overwrites the holder of a key."""

    class Store(InMemoryStore):
        async def write(self, input: Any, options: Any) -> Any:
            for draft in input["memories"]:
                held = await self.get({"ids": [], "keys": [draft["key"]] if "key" in draft else []}, options)
                await self.delete({"ids": [item["id"] for item in held]}, options)
            return await super().write(input, options)


class Lenient(Changing):
    """Ignores filters, orders and strategies it does not know."""

    class Store(InMemoryStore):
        async def query(self, input: Any, options: Any) -> Any:
            try:
                return await super().query(input, options)
            except PluginError:
                return await super().query({"limit": input["limit"]}, options)

        async def search(self, input: Any, options: Any) -> Any:
            return await super().search({"query": input["query"], "limit": input["limit"]}, options)


class Offset(Changing):
    """Pages by position, which skips and repeats rows when others come and go."""

    class Store(InMemoryStore):
        async def query(self, input: Any, options: Any) -> Any:
            start = int(input.get("cursor", "0"))
            rest = {k: v for k, v in input.items() if k != "cursor"} | {"limit": 10_000}
            items = (await super().query(rest, options))["items"]
            page = items[start : start + input["limit"]]
            more = start + len(page) < len(items)
            return {"items": page, **({"nextCursor": str(start + len(page))} if more else {})}


class Reordering(Changing):
    class Store(InMemoryStore):
        async def write(self, input: Any, options: Any) -> Any:
            return list(reversed(await super().write(input, options)))


class Immortal(Changing):
    """Shows expired memories: its clock stands still."""

    Store = InMemoryStore

    def __init__(self) -> None:
        super().__init__()
        start = self.now()
        self.now = lambda: start


@pytest.mark.parametrize(
    ("backend", "test", "arguments"),
    [
        (Leaking, "test_foreign_memories_are_absent", ()),
        (Leaking, "test_every_scope_has_keys_of_its_own", ()),
        (Leaking, "test_searches_stay_in_their_scope", ("strategies",)),
        (Leaking, "test_a_cursor_belongs_to_its_scope", ()),
        (Trimming, "test_content_comes_back_unchanged", (" padded ",)),
        (OneByOne, "test_one_conflict_leaves_an_atomic_write_undone", ()),
        (OneByOne, "test_a_cancelled_batch_is_whole_or_absent", (8,)),
        (Forgetful, "test_an_unexpected_version_is_a_conflict_that_names_the_id", (1,)),
        (Forgetful, "test_one_of_many_updates_of_one_version_wins", ()),
        (Upserting, "test_a_taken_key_is_a_conflict", ()),
        (Upserting, "test_one_of_many_writes_of_one_key_wins", ()),
        (Lenient, "test_an_unknown_operator_is_refused_even_without_memories", ({"n": {"$regex": "a"}},)),
        (Lenient, "test_an_order_by_anything_else_is_refused", ()),
        (Lenient, "test_a_cursor_from_nowhere_is_refused", ("x",)),
        (Lenient, "test_an_unknown_strategy_is_refused_with_the_known_ones", ("strategies",)),
        (Lenient, "test_filter_and_limit_hold", ("strategies",)),
        (Offset, "test_unchanged_rows_appear_exactly_once", ("id", "asc")),
        (Reordering, "test_items_come_back_in_the_order_of_the_drafts", ()),
        (Immortal, "test_an_expired_memory_is_absent_everywhere", ()),
    ],
)
async def test_a_broken_store_is_caught(backend: type[InMemoryBackend], test: str, arguments: tuple[Any, ...]) -> None:
    bench = Bench(backend(), None)
    given = [bench.promises("strategies") if argument == "strategies" else argument for argument in arguments]
    with pytest.raises((AssertionError, NodeFailed)):
        await getattr(Suite(), test)(bench, *given)
    # The very same call passes on the store that is not broken.
    await getattr(Suite(), test)(Bench(InMemoryBackend(), None), *given)


class Weak(Changing):
    """Promises less: no atomic batches, no filters, no orders, no search. It must pass by refusing."""

    @property
    def capabilities(self) -> Any:
        return {"atomicBatches": False}

    class Store(InMemoryStore):
        search = None  # type: ignore[assignment]

        async def query(self, input: Any, options: Any) -> Any:
            if input.get("filter"):
                raise PluginError("UNSUPPORTED_FILTER", "no filters")
            if input.get("orderBy"):
                raise PluginError("UNSUPPORTED_ORDER", "no orders")
            return await super().query(input, options)


class TestWeakStore(StoreConformance):
    @pytest.fixture
    def backend(self) -> InMemoryBackend:
        return Weak()


async def test_m66_the_life_of_two_memories_on_any_adapter() -> None:
    """Case M-66 is a test of the suite, so that every store runs it; here once under its number."""
    bench = Bench(InMemoryBackend(), None)
    await Suite().test_the_life_of_two_memories(bench, bench.promises("strategies"))
