"""Canonical JSON: what is hashed before the insert is what a re-read hashes."""

from __future__ import annotations

import json
import math

import pytest
from tests.plugins.postgres.properties import holds
from tests.schema import json_values

from memplane.errors import PluginError
from memplane.schema.canonical import MAX_DEPTH, canonical, normalise


async def test_a_normalised_value_survives_jsonb(database):
    async with database.acquire() as connection:

        async def check(value: object) -> None:
            normal = normalise(value, "content")
            text = canonical(normal)
            stored = await connection.fetchval("SELECT $1::jsonb", text)
            assert canonical(json.loads(stored)) == text
            assert canonical(normalise(json.loads(stored), "content")) == text

        await holds(json_values.values, check, examples=500)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e16, 10**16),
        (1.5e300, 15 * 10**299),
        (-0.0, 0.0),
        (1e15, 1e15),
        (2**70, 2**70),
        ({"b": 1, "a": [(1, 2)]}, {"b": 1, "a": [[1, 2]]}),
        (True, True),
        ("é", "é"),
        ("e\u0301", "e\u0301"),
    ],
)
def test_normalising(value, expected):
    result = normalise(value, "content")

    assert result == expected
    assert type(result) is type(expected)
    assert math.copysign(1, result) == 1 if isinstance(result, float) else True


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


REFUSED = [
    (float("nan"), "not finite"),
    (float("-inf"), "not finite"),
    ("a\0b", "U\\+0000"),
    ({"a\0": 1}, "U\\+0000"),
    ("\ud800", "surrogate"),
    ({"x": {"\udfff": 1}}, "surrogate"),
    (10**4300, "4300 digits"),
    (-(10**4300), "4300 digits"),
    (deep(MAX_DEPTH + 1), "levels"),
    ({1: 2}, "names"),
    (object(), "JSON value"),
    (b"bytes", "JSON value"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_what_the_database_cannot_hold_is_refused(value, reason):
    with pytest.raises(PluginError, match=f"memories\\[3\\].content .*{reason}") as caught:
        normalise(value, "memories[3].content")
    assert caught.value.code == "INVALID_INPUT"


async def test_the_extremes_that_are_accepted_fit(database):
    async with database.acquire() as connection:
        for value in (10**4300 - 1, 5e-324, 1.7976931348623157e308, deep(MAX_DEPTH)):
            text = canonical(normalise(value, "content"))
            assert canonical(json.loads(await connection.fetchval("SELECT $1::jsonb", text))) == text


def test_canonical_text_is_sorted_compact_and_unescaped():
    assert canonical({"b": [1, 2.5, None, True], "a": '汉字 "\n'}) == '{"a":"汉字 \\"\\n","b":[1,2.5,null,true]}'
