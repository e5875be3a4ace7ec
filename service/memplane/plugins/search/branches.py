"""What can go wrong in a branch, and what is left out because of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import asyncpg

from memplane.errors import MemplaneError, PluginError, RetrievalError, TargetUnavailable
from memplane.projections.embedding import VectorInvalid
from memplane.projections.errors import ProjectionMissing, ProjectionRefused
from memplane.schema.database import CONNECT_ERRORS

T = TypeVar("T")

_log = logging.getLogger(__name__)

STORES: Final = {"vector": "milvus", "keyword": "postgresql", "graph": "neo4j"}
"""What a branch reads, by the name that degraded searches report."""


class BranchFailed(Exception):  # noqa: N818 - names what happened
    """A branch has no answer because of `target`."""

    def __init__(self, branch: str, target: str) -> None:
        super().__init__(f"{branch} has no answer because of {target}")
        self.branch = branch
        self.target = target

    def unavailable(self) -> PluginError:
        """What the caller is told who asked for this branch by name."""
        return PluginError("SEARCH_UNAVAILABLE", f"The search strategy {self.branch} is unavailable: {self.target}")


class Guard:
    """Bounds a branch's time, sorts its failures, and leaves a dead store alone for a moment.

    Without the pause every search would wait for the same dead server again.
    """

    def __init__(
        self, branch: str, *, timeout: float, cooldown: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.branch = branch
        self._timeout = timeout
        self._cooldown = cooldown
        self._clock = clock
        self._away_until = float("-inf")
        self._away = STORES[branch]

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """The branch's answer. Raises `BranchFailed`; a `PluginError` (the caller's mistake) passes."""
        if self._clock() < self._away_until:
            raise BranchFailed(self.branch, self._away)
        try:
            async with asyncio.timeout(self._timeout):
                return await work()
        except PluginError:
            raise
        except (RetrievalError, VectorInvalid) as error:
            # The embedding provider's nonsense: the store itself is well.
            raise self._failed("embedding", error) from None
        except TargetUnavailable as error:
            # Embeddings look after themselves: without them vectors can still be searched for.
            if error.target != "embedding":
                self._leave_alone(error.target)
            raise self._failed(error.target, error) from None
        except (TimeoutError, *CONNECT_ERRORS, asyncpg.QueryCanceledError) as error:
            self._leave_alone(STORES[self.branch])
            raise self._failed(STORES[self.branch], error) from None
        except (ProjectionMissing, ProjectionRefused) as error:
            raise self._failed(STORES[self.branch], error) from None

    def _leave_alone(self, target: str) -> None:
        self._away_until = self._clock() + self._cooldown
        self._away = target

    def _failed(self, target: str, error: BaseException) -> BranchFailed:
        _log.warning(
            "a search branch has no answer",
            extra={"branch": self.branch, "target": target, "error": type(error).__name__, "reason": _reason(error)},
        )
        return BranchFailed(self.branch, target)


def _reason(error: BaseException) -> str:
    """What may be logged: our own errors carry no driver text, others may."""
    return str(error) if isinstance(error, MemplaneError) else ""
