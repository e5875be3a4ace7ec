"""QUERY: every promised operator and order field works; everything else is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from memplane.conformance.base import Bench, ConformanceBase, code, everything, ids, write

ROWS: list[dict[str, Any]] = [
    {"key": "zero", "content": 0, "metadata": {"n": 0, "s": "a", "list": [1, 2], "flag": True}},
    {"key": "one", "content": 1, "metadata": {"n": 1, "s": "b", "list": ["1"], "flag": False}},
    {"key": "two", "content": 2, "metadata": {"n": 2.5, "s": "B", "list": [], "flag": 1}},
    {"key": "text", "content": 3, "metadata": {"n": "1", "s": None, "list": "1", "sub": {"deep": {"x": 1}}}},
    {"key": "bare", "content": 4},
]

CASES: list[tuple[Sequence[str], dict[str, Any], list[str]]] = [
    (["$eq"], {}, ["zero", "one", "two", "text", "bare"]),
    (["$eq"], {"n": 1}, ["one"]),
    (["$eq"], {"n": 1.0}, ["one"]),
    (["$eq"], {"n": "1"}, ["text"]),
    (["$eq"], {"flag": True}, ["zero"]),
    (["$eq"], {"flag": 1}, ["two"]),
    (["$eq"], {"s": None}, ["text"]),
    (["$eq"], {"list": [1, 2]}, ["zero"]),
    (["$eq"], {"sub": {"deep": {"x": 1}}}, ["text"]),
    (["$eq"], {"sub.deep.x": 1}, ["text"]),
    (["$eq"], {"metadata.n": 0}, ["zero"]),
    (["$eq"], {"n": {"$eq": 0}, "s": "a"}, ["zero"]),
    (["$eq"], {"key": "two"}, ["two"]),
    (["$eq"], {"metadata.key": "two"}, []),
    (["$eq"], {"absent": 1}, []),
    (["$eq"], {"n": "' OR 1=1 --"}, []),
    (["$ne"], {"n": {"$ne": 1}}, ["zero", "two", "text", "bare"]),
    (["$gt"], {"n": {"$gt": 0}}, ["one", "two"]),
    (["$gte"], {"n": {"$gte": 1}}, ["one", "two"]),
    (["$lt"], {"n": {"$lt": 2.5}}, ["zero", "one"]),
    (["$lte"], {"n": {"$lte": 1}}, ["zero", "one"]),
    (["$gt"], {"s": {"$gt": "B"}}, ["zero", "one"]),
    (["$gt", "$lt"], {"n": {"$gt": 0, "$lt": 2}}, ["one"]),
    (["$gt"], {"flag": {"$gt": 0}}, ["two"]),
    (["$in"], {"n": {"$in": [0, "1", None]}}, ["zero", "text"]),
    (["$in"], {"n": {"$in": []}}, []),
    (["$exists"], {"s": {"$exists": True}}, ["zero", "one", "two", "text"]),
    (["$exists"], {"s": {"$exists": False}}, ["bare"]),
    (["$contains"], {"list": {"$contains": 1}}, ["zero"]),
    (["$contains"], {"list": {"$contains": "1"}}, ["one"]),
    (["$and"], {"$and": [{"s": "a"}, {"n": 0}]}, ["zero"]),
    (["$or"], {"$or": [{"n": 0}, {"n": "1"}]}, ["zero", "text"]),
    (["$or"], {"$or": []}, []),
    (["$not"], {"$not": {"n": 0}}, ["one", "two", "text", "bare"]),
    (["$not", "$or", "$gt"], {"$not": {"$or": [{"n": {"$gt": 0}}, {"s": "a"}]}}, ["text", "bare"]),
]

ORDER_FIELDS = ["id", "key", "createdAt", "updatedAt", "importance", "version"]


class QueriesConformance(ConformanceBase):
    @pytest.mark.parametrize(("operators", "filter", "expected"), CASES, ids=str)
    async def test_filters(
        self,
        bench: Bench,
        operators: Sequence[str],
        filter: dict[str, Any],  # noqa: A002 - the wire's name
        expected: list[str],
    ) -> None:
        await write(bench.own, *ROWS)
        promised = set(operators) <= set(bench.promises("filters"))
        result = await bench.own.query({"filter": filter})
        if promised:
            assert sorted(item["key"] for item in result.unwrap()["items"]) == sorted(expected)
        elif filter:
            assert code(result) == "UNSUPPORTED_FILTER"

    @pytest.mark.parametrize(
        "filter",
        [{"n": {"$regex": "a"}}, {"$nor": []}, {"n": {"$gt": 1, "$near": 2}}, {"$where": "1"}, {"n": {"$EQ": 1}}],
        ids=str,
    )
    async def test_an_unknown_operator_is_refused_even_without_memories(
        self,
        bench: Bench,
        filter: dict[str, Any],  # noqa: A002
    ) -> None:
        assert code(await bench.own.query({"filter": filter})) == "UNSUPPORTED_FILTER"

    @pytest.mark.parametrize("direction", ["asc", "desc"])
    @pytest.mark.parametrize("field", ORDER_FIELDS)
    async def test_orders(self, bench: Bench, field: str, direction: str) -> None:
        metadata = [{"importance": 0.5}, {"importance": 0.25}, {}, {"importance": 1}, {"importance": 0.5}]
        keys = ["b", "\u00e4", "B", "a", "\U0001f600"]
        items = [
            item
            for key, data in zip(keys, metadata, strict=True)
            for item in await write(bench.own, {"key": key, "content": key, "metadata": data})
        ]
        await bench.own.update({"memories": [{"id": items[1]["id"], "content": "changed"}]})
        request: dict[str, Any] = {"orderBy": [{"field": field, "direction": direction}]}
        result = await bench.own.query(request)
        if field not in bench.promises("orderFields"):
            assert code(result) == "UNSUPPORTED_ORDER"
            return
        rows = result.unwrap()["items"]
        assert sorted(ids(rows)) == sorted(ids(items))
        values = [_order_value(field, row) for row in rows]
        present = [value for value in values if value is not None]
        assert present == sorted(present, reverse=direction == "desc")
        assert values[: len(present)] == present, "what is absent comes last"
        assert ids(await everything(bench.own, limit=2, **request)) == ids(rows), "ties have a stable order"

    async def test_an_order_by_anything_else_is_refused(self, bench: Bench) -> None:
        for field in ("metadata.n", "content", "unknown", "id; DROP TABLE memories"):
            result = await bench.own.query({"orderBy": [{"field": field}]})
            assert code(result) == "UNSUPPORTED_ORDER", field

    async def test_without_an_order_pages_are_stable(self, bench: Bench) -> None:
        await write(bench.own, *({"content": number} for number in range(7)))
        assert ids(await everything(bench.own, limit=2)) == ids(await everything(bench.own))


def _order_value(field: str, row: Any) -> Any:
    if field == "importance":
        return row.get("metadata", {}).get("importance")
    return int(row["id"]) if field == "id" and row["id"].isdecimal() else row.get(field)
