"""One life of two memories, from write to delete (case M-66)."""

from __future__ import annotations

from collections.abc import Sequence

from memplane.conformance.base import Bench, ConformanceBase, ids, write


class FlowConformance(ConformanceBase):
    async def test_the_life_of_two_memories(self, bench: Bench, strategies: Sequence[str]) -> None:
        memory = bench.own
        first, second = await write(
            memory,
            {"key": "preference", "content": "prefers the colour vermilion", "metadata": {"source": "user"}},
            {"content": {"text": "a structured note"}},
        )
        by_both = (await memory.get({"ids": [second["id"]], "keys": ["preference"]})).unwrap()
        assert ids(by_both) == [second["id"], first["id"]]
        page = (await memory.query({"limit": 1})).unwrap()
        following = (await memory.query({"limit": 1, "cursor": page["nextCursor"]})).unwrap()
        assert {*ids(page["items"]), *ids(following["items"])} == {first["id"], second["id"]}
        if strategies:
            await self.settle()
            hits = (await memory.search({"query": "vermilion"})).unwrap()
            assert first["id"] in [hit["memory"]["id"] for hit in hits]
        [updated] = (await memory.update({"memories": [{"id": first["id"], "metadata": {"revision": 2}}]})).unwrap()
        assert updated["content"] == first["content"]
        assert updated["key"] == "preference"
        assert updated["metadata"] == {"revision": 2}
        both = [first["id"], second["id"]]
        assert sorted((await memory.delete({"ids": both})).unwrap()["deleted"]) == sorted(both)
        assert (await memory.delete({"ids": both})).unwrap() == {"deleted": []}
        assert (await memory.get({"ids": both, "keys": ["preference"]})).unwrap() == []
