"""Scope isolation: a foreign memory behaves exactly as an absent one, for a foreign tenant and a foreign user."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from memplane.conformance.base import Bench, ConformanceBase, code, everything, ids, write
from memplane.contracts import Scope


class ScopesConformance(ConformanceBase):
    async def test_foreign_memories_are_absent(self, bench: Bench) -> None:
        [foreign] = await write(bench.own, {"key": "k", "content": "own", "metadata": {"n": 1}})
        for neighbour in (bench.same_tenant, bench.same_user):
            assert (await neighbour.get({"ids": [foreign["id"]], "keys": ["k"]})).unwrap() == []
            assert await everything(neighbour) == []
            entry = {"id": foreign["id"], "content": "stolen"}
            result = await neighbour.update({"memories": [entry]})
            absent = await neighbour.update({"memories": [{"id": "404404404", "content": 1}]})
            assert code(result) == code(absent) == "NOT_FOUND"
            assert (await neighbour.delete({"ids": [foreign["id"]]})).unwrap() == {"deleted": []}
            expected = {"ids": [foreign["id"]], "expectedVersions": {foreign["id"]: 77}}
            assert (await neighbour.delete(expected)).unwrap() == {"deleted": []}
        [read] = (await bench.own.get({"ids": [foreign["id"]]})).unwrap()
        assert read == foreign

    async def test_every_scope_has_keys_of_its_own(self, bench: Bench) -> None:
        memories = [bench.own, bench.same_tenant, bench.same_user]
        for number, memory in enumerate(memories):
            await write(memory, {"key": "k", "content": number})
        for number, memory in enumerate(memories):
            assert [item["content"] for item in (await memory.get({"keys": ["k"]})).unwrap()] == [number]

    async def test_no_input_reaches_another_scope(self, bench: Bench) -> None:
        [foreign] = await write(bench.own, {"key": "k", "content": "own"})
        tenant, user = bench.scope.tenant, bench.scope.user
        extra = {"tenant": tenant, "user": user, "user_id": user, "scope": {"tenant": tenant, "user": user}}
        neighbour = bench.same_tenant
        assert (await neighbour.get({"ids": [foreign["id"]], **extra})).unwrap() == []
        [item] = await write(neighbour, {"key": "k", "content": "other", "metadata": dict(extra), **extra})
        assert ids(await everything(neighbour, **extra)) == [item["id"]]
        assert item["metadata"] == extra
        assert ids(await everything(bench.own)) == [foreign["id"]]
        if "$eq" in bench.promises("filters"):
            assert ids(await everything(neighbour, filter={"tenant": tenant})) == [item["id"]]
            assert await everything(bench.own, filter={"tenant": tenant}) == []

    async def test_searches_stay_in_their_scope(self, bench: Bench, strategies: Sequence[str]) -> None:
        await write(bench.own, {"content": "an unmistakable heliotrope"})
        await write(bench.same_user, {"content": "another heliotrope"})
        if not strategies:
            return
        await self.settle()
        for strategy in strategies:
            found = (await bench.same_tenant.search({"query": "heliotrope", "strategy": strategy})).unwrap()
            assert list(found) == []

    async def test_a_scope_sees_what_its_twin_wrote(self, bench: Bench) -> None:
        [item] = await write(bench.own, {"content": 1})
        twin = bench.memory(Scope(bench.scope.tenant, bench.scope.user))
        assert ids(await everything(twin)) == [item["id"]]

    @pytest.mark.parametrize(("tenant", "user"), [("a", "bc"), ("ab", "c")])
    async def test_scopes_are_pairs_not_strings(self, bench: Bench, tenant: str, user: str) -> None:
        token = bench.scope.tenant
        one = bench.memory(Scope(f"{token}a", f"b{token}"))
        other = bench.memory(Scope(f"{token}ab", token))
        await write(one, {"key": f"{tenant}{user}", "content": 1})
        assert await everything(other) == []
