"""What a SEARCH input may say, and how a mistake is named. No servers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane.errors import PluginError, SettingsError
from memplane.plugins.registry import Resources, create_search
from memplane.plugins.search.ranking import Explanation, Found, rank, replaced
from memplane.plugins.search.request import GraphOptions, parse_request
from memplane.plugins.search.settings import BRANCHES, HybridSettings
from memplane.schema.database import Database
from memplane.settings import PostgresSettings

SETTINGS = HybridSettings()


def parsed(query: Any = "x", **more: Any) -> Any:
    return parse_request({"query": query, "limit": 10, **more}, BRANCHES, SETTINGS)  # type: ignore[typeddict-item]


def test_defaults() -> None:
    request = parsed("some text")
    assert request.text == "some text"
    assert request.vector is None
    assert request.strategy == "hybrid"
    assert request.weights == {"vector": 1, "keyword": 1, "graph": 0.5}
    assert (request.rrf_k, request.pool, request.limit) == (60, 100, 10)
    assert request.graph == GraphOptions(depth=1, decay=0.5, count=5)


def test_a_vector_keeps_its_direction_alone() -> None:
    assert parsed({"vector": [3, 4]}).vector == (0.6, 0.8)
    assert parsed({"vector": [3e38, 0, 0]}).vector == (1, 0, 0)
    assert parsed({"text": "t", "vector": (0.0, -2)}).vector == (0, -1)


@given(st.lists(st.floats(-1e38, 1e38, allow_nan=False, allow_subnormal=False), min_size=1, max_size=8))
def test_directions_have_length_one(vector: list[float]) -> None:
    if math.hypot(*vector) > 0:
        assert math.isclose(math.hypot(*parsed({"vector": vector}).vector), 1, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (None, "query must be a string or an object with text, vector or both"),
        (7, "query must be"),
        ([0.1, 0.2], "query must be"),
        ({}, "query must be"),
        ("", "query must be a string that is not blank"),
        (" \n", "not blank"),
        ({"text": 5}, "query.text must be a string"),
        ({"text": "x" * 70_000}, "query.text must not be longer than 65536 characters"),
        ({"text": "a\0b"}, "query.text must not contain U\\+0000"),
        ({"txt": "x"}, "query has no member 'txt'; known: text, vector"),
        ({"vector": []}, "query.vector must be a nonempty array"),
        ({"vector": "abc"}, "query.vector must be a nonempty array"),
        ({"vector": None}, "query.vector must be a nonempty array"),
        ({"vector": [1, True]}, "query.vector must hold finite numbers"),
        ({"vector": [1, "2"]}, "query.vector must hold finite numbers"),
        ({"vector": [math.nan]}, "query.vector must hold finite numbers"),
        ({"vector": [math.inf, 1]}, "query.vector must hold finite numbers"),
        ({"vector": [1e39]}, "query.vector must hold finite numbers"),
        ({"vector": [10**400]}, "query.vector must hold finite numbers"),
        ({"vector": [0, 0.0]}, "query.vector must not be all zeros"),
    ],
)
def test_queries_that_cannot_be_asked(query: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message) as error:
        parsed(query)
    assert error.value.code == "INVALID_INPUT"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "L2"}, "options has no member 'metric'; known: weights, rrfK, pool, graph"),
        ({"rrfK": 0}, r"options.rrfK must be an integer in 1\.\.10000"),
        ({"rrfK": 1.5}, "options.rrfK must be"),
        ({"rrfK": True}, "options.rrfK must be"),
        ({"pool": 10_001}, r"options.pool must be an integer in 1\.\.10000"),
        ({"weights": {"vektor": 1}}, "options.weights has no member 'vektor'"),
        ({"weights": {"vector": 0}}, "options.weights.vector must be a number above 0"),
        ({"weights": {"vector": math.nan}}, "options.weights.vector must be"),
        ({"weights": []}, "options.weights must be an object"),
        ({"graph": {"depth": 5}}, r"options.graph.depth must be an integer in 1\.\.4"),
        ({"graph": {"decay": 1.5}}, "options.graph.decay must be"),
        ({"graph": {"types": "follows"}}, "options.graph.types must be an array"),
        ({"graph": {"types": [""]}}, "options.graph.types must hold nonempty strings"),
        ({"graph": {"seeds": [7]}}, "options.graph.seeds must hold nonempty strings"),
        ({"graph": {"seeds": ["1"] * 101}}, "options.graph.seeds must be an array of at most 100"),
        ({"graph": {"hops": 2}}, "options.graph has no member 'hops'"),
    ],
)
def test_options_that_do_not_exist_or_do_not_fit(options: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message) as error:
        parsed(options=options)
    assert error.value.code == "INVALID_INPUT"


def test_seeds_that_no_memory_can_have_are_absent() -> None:
    assert parsed(options={"graph": {"seeds": ["7", "007", "x"], "types": ["a"]}}).graph == GraphOptions(
        1, 0.5, 5, ("a",), (7,)
    )


def test_strategies_of_what_is_configured() -> None:
    with pytest.raises(PluginError, match=r"known: keyword, hybrid$") as error:
        parse_request({"query": "x", "limit": 1, "strategy": "graph"}, ("keyword",), SETTINGS)
    assert error.value.code == "UNSUPPORTED_STRATEGY"


def test_one_branch_keeps_its_scores_and_several_are_fused() -> None:
    vector = [Found(1, 0.9), Found(2, 0.8)]
    keyword = [Found(2, 7.0), Found(3, 5.0)]
    weights = {"vector": 1.0, "keyword": 2.0}
    assert rank({"vector": vector}, fused=False, weights=weights, rrf_k=60) == [(1, 0.9), (2, 0.8)]
    fused = rank({"vector": vector, "keyword": keyword}, fused=True, weights=weights, rrf_k=1)
    assert fused == [(2, 1 / 3 + 2 / 2), (3, 2 / 3), (1, 1 / 2)]
    assert Explanation({"vector": vector, "keyword": keyword}, weights).of(2) == {
        "branches": {
            "vector": {"rank": 2, "score": 0.8, "weight": 1.0},
            "keyword": {"rank": 1, "score": 7.0, "weight": 2.0},
        }
    }


def test_ties_go_by_id() -> None:
    lists = {"vector": [Found(9, 0.5)], "keyword": [Found(3, 0.5)]}
    assert rank(lists, fused=True, weights={"vector": 1, "keyword": 1}, rrf_k=60) == [(3, 1 / 61), (9, 1 / 61)]
    assert replaced([Found(5, 0.5, 1), Found(6, 0.4, 1)], [Found(6, 0.5, 2), Found(2, 0.5, 2)]) == [
        Found(2, 0.5, 2),
        Found(5, 0.5, 1),
        Found(6, 0.5, 2),
    ]


def test_plugins_by_name() -> None:
    database = Database(PostgresSettings(dsn="postgresql://nobody@127.0.0.1/none"))  # type: ignore[arg-type]
    native: Any = create_search("native", {}, Resources(database=database))
    hybrid: Any = create_search("hybrid", {"rrf_k": 10}, Resources(database=database))
    assert native.branches.names == hybrid.branches.names == ("keyword",)
    assert hybrid.settings.rrf_k == 10
    with pytest.raises(SettingsError, match="branches"):
        create_search("hybrid", {"branches": ["vector"]}, Resources(database=database))
    with pytest.raises(SettingsError, match="rrfk"):
        create_search("hybrid", {"rrfk": 10}, Resources(database=database))
    with pytest.raises(SettingsError):
        create_search("native", {"pool": 3}, Resources(database=database))
    with pytest.raises(SettingsError, match="database"):
        create_search("hybrid", {}, Resources())
