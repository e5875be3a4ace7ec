"""Two independent implementations of one contract: whatever is done to both, they answer the same.

Ids and times are the only things that may differ; ids are compared by the order in which memories were made.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from tests.plugins.postgres.properties import holds

from memplane.contracts import Scope
from memplane.nodes import Memory, create_memory
from memplane.plugins.inmemory import InMemoryBackend
from memplane.plugins.postgres import PostgresBackend
from memplane.schema.database import Database

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
numbers = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, 1.0, -0.0, 1e16, 2**60, 1e-7]))
scalars = st.one_of(st.none(), st.booleans(), numbers, texts, st.sampled_from(["a", "b", "ä", "\U0001f600"]))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=2)),
    max_leaves=4,
)
importances = st.sampled_from([0, 0.25, 0.5, 1])
names = st.sampled_from(["x", "y", "list"])
metadata = st.builds(
    lambda plain, reserved: {**plain, **reserved},
    st.dictionaries(names, values, max_size=3),
    st.fixed_dictionaries(
        {}, optional={"importance": importances, "category": st.sampled_from(["a", "b"]), "tags": st.just(["a", "b"])}
    ),
)
keys = st.sampled_from(["k1", "k2", "K1", "ä", "\U0001f600"])
positions = st.integers(0, 6)
drafts = st.fixed_dictionaries({"content": values}, optional={"key": keys, "metadata": metadata})

fields = st.sampled_from(["x", "y", "list", "metadata.x", "importance", "category", "key", "version", "tags", "id"])
plain_conditions = st.one_of(
    scalars,
    st.fixed_dictionaries({"$eq": values}),
    st.fixed_dictionaries({"$ne": scalars}),
    st.fixed_dictionaries({"$in": st.lists(scalars, max_size=3)}),
    st.fixed_dictionaries({"$exists": st.booleans()}),
    st.fixed_dictionaries({"$contains": scalars}),
    st.fixed_dictionaries({}, optional={"$gt": scalars, "$gte": numbers, "$lt": scalars, "$lte": texts}),
)
filters = st.recursive(
    st.dictionaries(fields, plain_conditions, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$not": inner}),
        st.fixed_dictionaries({"$and": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"$or": st.lists(inner, max_size=2)}),
    ),
    max_leaves=3,
)
orders = st.lists(
    st.fixed_dictionaries(
        {
            "field": st.sampled_from(["id", "key", "importance", "version", "unknown"]),
            "direction": st.sampled_from(["asc", "desc"]),
        }
    ),
    max_size=3,
)

operations = st.one_of(
    st.tuples(st.just("write"), st.lists(drafts, min_size=1, max_size=4)),
    st.tuples(
        st.just("update"),
        st.lists(
            st.tuples(
                positions,
                st.fixed_dictionaries({}, optional={"content": values, "metadata": metadata}),
                st.one_of(st.none(), st.integers(1, 3)),
            ),
            min_size=1,
            max_size=3,
        ),
    ),
    st.tuples(st.just("delete"), st.dictionaries(positions, st.one_of(st.none(), st.integers(1, 3)), max_size=3)),
    st.tuples(st.just("get"), st.tuples(st.lists(positions, max_size=3), st.lists(keys, max_size=3))),
    st.tuples(st.just("query"), st.tuples(filters, orders, st.integers(1, 4))),
)


class Side:
    """One store with the ids of what was made, so that both can be told to touch the same memory."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.made: list[str] = []

    def id_of(self, position: int) -> str:
        return self.made[position] if position < len(self.made) else f"99999999{position}"

    async def apply(self, operation: tuple[str, Any]) -> Any:
        """What a caller sees, with ids replaced by positions and times left out."""
        result = await getattr(self, f"_{operation[0]}")(operation[1])
        return [result.status, result.error.code if result.error else self.normal(result.output)]

    async def _write(self, batch: Any) -> Any:
        result = await self.memory.write({"memories": batch})
        self.made += [item["id"] for item in result.output or ()]
        return result

    async def _update(self, changes: Any) -> Any:
        entries = [
            {"id": self.id_of(position), **change, **({} if version is None else {"expectedVersion": version})}
            for position, change, version in changes
        ]
        return await self.memory.update({"memories": entries})

    async def _delete(self, expected: Any) -> Any:
        versions = {self.id_of(position): version for position, version in expected.items() if version is not None}
        request = {"ids": [self.id_of(position) for position in expected], "expectedVersions": versions}
        return await self.memory.delete(request)

    async def _get(self, wanted: Any) -> Any:
        return await self.memory.get({"ids": [self.id_of(position) for position in wanted[0]], "keys": wanted[1]})

    async def _query(self, asked: Any) -> Any:
        request: dict[str, Any] = {"filter": asked[0], "orderBy": asked[1], "limit": asked[2]}
        items: list[Any] = []
        while True:
            page = await self.memory.query(request)
            if page.output is None:
                return page
            items += page.output["items"]
            if "nextCursor" not in page.output:
                page.output["items"] = items
                return page
            request["cursor"] = page.output["nextCursor"]

    def normal(self, value: Any) -> Any:
        if isinstance(value, dict) and "deleted" in value:
            return sorted(self.made.index(memory_id) for memory_id in value["deleted"])
        if isinstance(value, dict) and "items" in value:
            return [self.normal(item) for item in value["items"]]
        if isinstance(value, list):
            return [self.normal(item) for item in value]
        times = ("createdAt", "updatedAt")
        return {name: part for name, part in value.items() if name not in times} | {"id": self.made.index(value["id"])}


@pytest.mark.slow
async def test_both_stores_answer_the_same(database: Database) -> None:
    postgres = PostgresBackend(database, targets=frozenset())
    await postgres.start()

    async def check(history: list[tuple[str, Any]]) -> None:
        scope = Scope("acme", str(uuid4()))
        left = Side(create_memory(store=postgres.scoped(scope)))
        right = Side(create_memory(store=InMemoryBackend().scoped(scope)))
        for operation in history:
            assert await left.apply(operation) == await right.apply(operation), operation

    writes = st.tuples(st.just("write"), st.lists(drafts, min_size=1, max_size=4))
    histories = st.builds(lambda first, rest: [*first, *rest], st.tuples(writes, writes), st.lists(operations))
    await holds(histories, check, examples=100)
