"""The filter language: what parses, what is refused, what it means."""

from __future__ import annotations

import pytest

from memplane.errors import PluginError
from memplane.retrieval.filters import And, Equal, Field, Not, matches, parse_filter

ITEM = {
    "id": "42",
    "key": "alpha",
    "content": "text",
    "version": 3,
    "createdAt": "2026-01-02T03:04:05.000006Z",
    "updatedAt": "2026-01-03T00:00:00.000000Z",
    "metadata": {
        "importance": 0.5,
        "category": "fact",
        "tags": ["a", "b"],
        "expires_at": "2999-01-01T00:00:00+00:00",
        "state": "active",
        "n": 5,
        "flag": True,
        "none": None,
        "list": [1, "1", [2], {"x": 1}],
        "deep": {"a": {"b": 7}, "0": "zero"},
        "id": "metadata id",
    },
}

MEANING = [
    ({}, True),
    ({"state": "active"}, True),
    ({"state": "Active"}, False),
    ({"state": "active", "n": 5}, True),
    ({"n": 5.0}, True),
    ({"n": "5"}, False),
    ({"n": True}, False),
    ({"flag": True}, True),
    ({"flag": 1}, False),
    ({"none": None}, True),
    ({"missing": None}, False),
    ({"missing": {"$ne": 1}}, True),
    ({"none": {"$exists": True}}, True),
    ({"missing": {"$exists": True}}, False),
    ({"missing": {"$exists": False}}, True),
    ({"n": {"$gt": 4, "$lt": 6}}, True),
    ({"n": {"$gte": 5, "$lte": 5}}, True),
    ({"n": {"$gt": "4"}}, False),
    ({"state": {"$gt": "Z"}}, True),
    ({"flag": {"$gte": 0}}, False),
    ({"n": {"$in": ["5", 4]}}, False),
    ({"n": {"$in": [1, 5]}}, True),
    ({"n": {"$in": []}}, False),
    ({"list": {"$contains": 1}}, True),
    ({"list": {"$contains": 1.0}}, True),
    ({"list": {"$contains": True}}, False),
    ({"list": {"$contains": [2]}}, True),
    ({"list": {"$contains": {"x": 1}}}, True),
    ({"list": {"$contains": {}}}, False),
    ({"state": {"$contains": "act"}}, False),
    ({"deep.a.b": 7}, True),
    ({"metadata.deep.a": {"b": 7}}, True),
    ({"deep.0": "zero"}, True),
    ({"list.0": 1}, False),
    ({"state.x": {"$exists": True}}, False),
    ({"id": "42"}, True),
    ({"id": 42}, False),
    ({"id": "042"}, False),
    ({"metadata.id": "metadata id"}, True),
    ({"id": {"$gt": "9"}}, True),
    ({"key": "alpha"}, True),
    ({"key": {"$lt": "b"}}, True),
    ({"version": 3}, True),
    ({"version": {"$gt": 2.5}}, True),
    ({"version": "3"}, False),
    ({"importance": {"$gte": 0.5}}, True),
    ({"category": {"$in": ["fact", "x"]}}, True),
    ({"tags": {"$contains": "a"}}, True),
    ({"tags": {"$contains": 1}}, False),
    ({"tags": ["a", "b"]}, True),
    ({"tags": ["b", "a"]}, False),
    ({"slot_hint": {"$exists": False}}, True),
    ({"createdAt": "2026-01-02T04:04:05.000006+01:00"}, True),
    ({"createdAt": {"$lt": "2026-01-03T00:00:00Z"}}, True),
    ({"createdAt": "not a time"}, False),
    ({"expires_at": {"$gt": "2500-01-01T00:00:00Z"}}, True),
    ({"$or": [{"n": 1}, {"state": "active"}]}, True),
    ({"$or": []}, False),
    ({"$and": []}, True),
    ({"$and": [{"n": 5}, {"n": 6}]}, False),
    ({"$not": {"n": 5}}, False),
    ({"$not": {"n": {"$gt": "x"}}}, True),
    ({"tenant": "t"}, False),
]


@pytest.mark.parametrize(("document", "expected"), MEANING, ids=[str(document) for document, _ in MEANING])
def test_meaning(document, expected):
    assert matches(parse_filter(document), ITEM) is expected


@pytest.mark.parametrize(
    "document",
    [
        {"$where": "1"},
        {"n": {"$regex": "x"}},
        {"n": {"$gt": 1, "plain": 2}},
        {"n": {"$gt": None}},
        {"n": {"$gt": True}},
        {"n": {"$gt": [1]}},
        {"n": {"$in": 5}},
        {"n": {"$exists": 1}},
        {"$and": {}},
        {"$or": [1]},
        {"$not": []},
        {"": 1},
        {"a..b": 1},
        {"metadata.": 1},
        {"createdAt": {"$gt": 5}},
        {"createdAt": {"$gt": "yesterday"}},
        {"id": {"$gt": "007"}},
        {"version": {"$gt": "1"}},
        {"importance": {"$lt": "x"}},
        {"key": {"$lt": 1}},
        {"tags": {"$gt": "a"}},
    ],
    ids=str,
)
def test_what_the_language_lacks_is_unsupported(document):
    with pytest.raises(PluginError) as caught:
        parse_filter(document)
    assert caught.value.code == "UNSUPPORTED_FILTER"


def nested(levels: int) -> dict[str, object]:
    document: dict[str, object] = {"n": 1}
    for _ in range(levels):
        document = {"$not": document}
    return document


@pytest.mark.parametrize(
    "document",
    [
        {"n": "a\0"},
        {"a\0": 1},
        {"n": {"$in": ["\ud800"]}},
        {"n": float("nan")},
        {"n": float("inf")},
        {"n": object()},
        nested(16),
        {"$and": [{"n": n} for n in range(1001)]},
        {"n": "x" * 2**20},
        [],
        "x",
        {".".join(["a"] * 101): 1},
        {"$and": [{".".join(["a"] * 100): n} for n in range(101)]},
    ],
    ids=range(13),
)
def test_values_no_memory_can_hold_and_filters_too_large_are_invalid(document):
    with pytest.raises(PluginError) as caught:
        parse_filter(document)
    assert caught.value.code == "INVALID_INPUT"
    assert caught.value.safe_message.startswith("filter ")


def test_the_limits_themselves_are_accepted():
    parse_filter(nested(15))
    parse_filter({"$and": [{"n": n} for n in range(1000)]})
    parse_filter({"id": {"$in": [str(n) for n in range(10_000)]}})
    parse_filter({"$and": [{".".join(["a"] * 100): n} for n in range(100)]})


def test_the_tree():
    assert parse_filter({"key": "a", "x.y": {"$ne": 1}}) == And(
        (Equal(Field(column="key"), ("a",)), Not(Equal(Field(path=("x", "y")), (1,))))
    )
    assert parse_filter({"x": {}}) == Equal(Field(path=("x",)), ({},))
