"""One reading only: what a JSON text may be, and how answers are written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane.api.strict_json import MAX_DEPTH, BadJson, parse, render

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Expecting value at line 1, column 1"),
        (b"{", "Expecting property name enclosed in double quotes at line 1, column 2"),
        (b"{} {}", "Extra data at line 1, column 4"),
        (b'{"a": 1, "a": 2}', "the name 'a' occurs twice in one object"),
        (b'{"b": {"a": 1, "x": 1, "a": 2}}', "the name 'a' occurs twice in one object"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"[Infinity]", "Infinity is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"[1e400]", "a number is out of range"),
        (b"9" * 4001, "an integer has more than 4000 digits"),
        (b'"\xff"', "invalid UTF-8 at byte 1"),
        (b'"\xed\xa0\x80"', "invalid UTF-8 at byte 1"),
        ("{}".encode("utf-16"), "invalid UTF-8 at byte 0"),
        (b"\xef\xbb\xbf{}", "Expecting value at line 1, column 1"),
        (b"'single'", "Expecting value at line 1, column 1"),
        (b'"\n"', "Invalid control character at at line 1, column 2"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH} levels"),
        (b"[" * 200_000, f"nested deeper than {MAX_DEPTH} levels"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, f"nested deeper than {MAX_DEPTH} levels"),
    ],
)
def test_refuses(body: bytes, reason: str) -> None:
    with pytest.raises(BadJson) as caught:
        parse(body)
    assert caught.value.reason == reason


def test_accepts_the_limits() -> None:
    assert parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert parse(b"9" * 4000) == int("9" * 4000)
    assert parse(b"[" + b"[]," * 1000 + b"[]]") == [[]] * 1001
    assert parse(b'"\\ud800"') == "\ud800"


@given(JSON_VALUES)
def test_round_trip(value: object) -> None:
    assert parse(render(value)) == value


@given(JSON_VALUES)
def test_reads_like_the_standard_library(value: object) -> None:
    assert parse(json.dumps(value).encode()) == value


def test_a_lone_surrogate_is_escaped() -> None:
    assert render({"a": "é\ud800"}) == b'{"a":"\\u00e9\\ud800"}'
    assert render({"a": "é"}) == '{"a":"é"}'.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_render_refuses_what_is_not_json(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        render([value])
