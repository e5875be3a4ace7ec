"""The documents of RETRIEVAL.SEARCH and the protocol of its providers. Source: `memplane.contracts` for the style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NotRequired, Protocol, TypedDict

from memplane.contracts import JSON, NodeInvoker
from memplane.retrieval.defaults import RetrievalDefaults
from memplane.signal import Signal

NODE = "RETRIEVAL.SEARCH"


class RetrievalQuery(TypedDict):
    """What is looked for: a text, a vector (a list of numbers), or whatever the provider understands."""

    content: JSON
    metadata: NotRequired[Mapping[str, JSON]]


class RetrievalTarget(TypedDict):
    """Where to look: a registered name, and what the application adds to it."""

    name: str
    type: NotRequired[str]
    namespace: NotRequired[str]
    metadata: NotRequired[Mapping[str, JSON]]


class RetrievalRequest(TypedDict):
    """What a provider sees: checked, with the limit and the strategy filled in."""

    query: RetrievalQuery
    target: RetrievalTarget
    limit: int
    strategy: NotRequired[str]
    filter: NotRequired[Mapping[str, JSON]]
    options: NotRequired[Mapping[str, JSON]]


class CandidateSource(TypedDict):
    target: NotRequired[str]
    ref: NotRequired[str]


class Candidate(TypedDict):
    """One result. Ids may be absent or repeated; scores have any scale and sign."""

    content: JSON
    id: NotRequired[str]
    score: NotRequired[float]
    source: NotRequired[CandidateSource]
    metadata: NotRequired[Mapping[str, JSON]]


class RetrievalOutput(TypedDict):
    candidates: Sequence[Candidate]
    target: RetrievalTarget
    strategy: NotRequired[str]
    metadata: NotRequired[Mapping[str, JSON]]


@dataclass(frozen=True, slots=True)
class RetrievalContext:
    """The second argument of every provider. `runtime` is bound to the call inside a worker, else None."""

    signal: Signal | None = None
    runtime: NodeInvoker | None = None
    defaults: RetrievalDefaults = field(default_factory=RetrievalDefaults)


class RetrievalProvider(Protocol):
    """One way to search one target. Raises `RetrievalError` for what may be shown, anything else for what may not."""

    async def search(self, request: RetrievalRequest, context: RetrievalContext) -> RetrievalOutput: ...


@dataclass(frozen=True, slots=True)
class Resolution:
    """The provider of a target's strategy, and the strategy's name (the target's default when none was asked for)."""

    strategy: str
    provider: RetrievalProvider


class RetrievalProviders(Protocol):
    """Finds providers; see `RetrievalTargetRegistry`. `resolve` may also be asynchronous."""

    def resolve(self, target: RetrievalTarget, strategy: str | None) -> Resolution: ...
