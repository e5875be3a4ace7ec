"""The options of the search plugins, as a deployment states them (`search.options`)."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from memplane.retrieval.fusion import DEFAULT_POOL, DEFAULT_RRF_K, MAX_RRF_K
from memplane.settings import Section

Branch = Literal["vector", "keyword", "graph"]

BRANCHES: Final[tuple[Branch, ...]] = ("vector", "keyword", "graph")
MAX_DEPTH: Final = 4
MAX_UNFINISHED: Final = 200


class Weights(Section):
    """What a branch's ranks count in the fusion; only the proportions matter."""

    vector: float = Field(1.0, gt=0, le=1000, allow_inf_nan=False)
    keyword: float = Field(1.0, gt=0, le=1000, allow_inf_nan=False)
    graph: float = Field(0.5, gt=0, le=1000, allow_inf_nan=False)


class GraphSettings(Section):
    depth: int = Field(1, ge=1, le=MAX_DEPTH, description="hops that relations are followed")
    decay: float = Field(0.5, gt=0, le=1, allow_inf_nan=False, description="what is left of a score after each hop")
    seeds: int = Field(5, ge=1, le=100, description="best memories of the other branches that are expanded")


class NativeSettings(Section):
    """`native` has no options."""


class HybridSettings(Section):
    """`hybrid`: every branch whose store is configured takes part, unless `branches` names fewer."""

    branches: tuple[Branch, ...] | None = Field(None, min_length=1, description="branches that take part")
    weights: Weights = Weights()
    rrf_k: int = Field(DEFAULT_RRF_K, ge=1, le=MAX_RRF_K, description="constant of reciprocal rank fusion")
    pool: int = Field(DEFAULT_POOL, ge=1, le=10_000, description="memories that each branch contributes at most")
    graph: GraphSettings = GraphSettings()
    branch_timeout: float = Field(5.0, gt=0, le=300, description="seconds a branch may take before it is left out")
    cooldown: float = Field(
        2.0, ge=0, le=60, description="seconds a branch is left out at once after its store did not answer"
    )
    unfinished: int = Field(
        MAX_UNFINISHED,
        ge=0,
        le=MAX_UNFINISHED,
        description="newest memories that are merged while their vectors are not yet projected",
    )
