"""What the HTTP layer asks of the rest: one small interface, so that it can be tested without servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from memplane.contracts import JSON, NodeResult, Scope
from memplane.signal import Signal


@dataclass(frozen=True, slots=True)
class Answer:
    """A node's result, and the projections that were left out of it because they did not answer."""

    result: NodeResult[JSON]
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """The state of one dependency. `detail` is safe to show to anybody."""

    ok: bool
    detail: str = ""


class NodePlane(Protocol):
    """Calls nodes in a scope."""

    def refusal(self) -> str | None:
        """Why no node can be called now (no database yet, schema too old); None when they can."""
        ...

    async def call(self, scope: Scope, node: str, document: JSON, signal: Signal) -> Answer: ...


class Health(Protocol):
    """Tells which dependency is missing."""

    @property
    def decisive(self) -> Sequence[str]:
        """Names of the checks that decide readiness: `postgresql` and `schema`, or with another store `store`."""
        ...

    async def checks(self) -> Mapping[str, Check]:
        """By name; what is not decisive is only listed. Never raises."""
        ...
