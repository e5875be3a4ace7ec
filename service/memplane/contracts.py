"""The public contract: documents, node results, plugin protocols. Source: seed `000`, design sections 3 to 5.

Documents are plain mappings with wire names. Presence matters: an absent key and `None` differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NotRequired, Protocol, TypedDict, TypeVar, runtime_checkable

from memplane.errors import NodeFailed
from memplane.signal import Signal

JSON = Any
"""A JSON value: None, bool, int, float, str, list or mapping of them. In process, `content` may be any object."""

NODES: tuple[str, ...] = (
    "MEMORY.GET",
    "MEMORY.QUERY",
    "MEMORY.SEARCH",
    "MEMORY.WRITE",
    "MEMORY.UPDATE",
    "MEMORY.DELETE",
)

MAX_LIMIT = 10_000
"""Largest `limit`, and largest number of ids or memories in one call over HTTP."""


class MemoryItem(TypedDict, total=False):
    """A stored memory. `id` and `content` are always present; stores of this project add version and times."""

    id: str
    key: str
    content: JSON
    metadata: dict[str, JSON]
    version: int
    createdAt: str
    updatedAt: str


class MemoryDraft(TypedDict):
    content: JSON
    key: NotRequired[str]
    metadata: NotRequired[Mapping[str, JSON]]


class MemoryUpdateEntry(TypedDict):
    """A partial update: an absent field stays; `metadata` replaces the whole object; `content: None` is a value."""

    id: str
    content: NotRequired[JSON]
    metadata: NotRequired[Mapping[str, JSON]]
    expectedVersion: NotRequired[int]


class OrderBy(TypedDict):
    field: str
    direction: NotRequired[Literal["asc", "desc"]]


class GetInput(TypedDict):
    """What a store sees: both lists, deduplicated, in the caller's order."""

    ids: list[str]
    keys: list[str]


class QueryInput(TypedDict):
    limit: int
    filter: NotRequired[Mapping[str, JSON]]
    cursor: NotRequired[str]
    orderBy: NotRequired[Sequence[OrderBy]]


class QueryOutput(TypedDict):
    items: list[MemoryItem]
    nextCursor: NotRequired[str]


class SearchInput(TypedDict):
    query: JSON
    limit: int
    strategy: NotRequired[str]
    filter: NotRequired[Mapping[str, JSON]]
    options: NotRequired[Mapping[str, JSON]]


class SearchHit(TypedDict):
    memory: MemoryItem
    score: NotRequired[float]
    metadata: NotRequired[Mapping[str, JSON]]


class WriteInput(TypedDict):
    memories: list[MemoryDraft]


class UpdateInput(TypedDict):
    memories: list[MemoryUpdateEntry]


class DeleteInput(TypedDict):
    ids: list[str]
    expectedVersions: NotRequired[Mapping[str, int]]


class DeleteOutput(TypedDict):
    deleted: list[str]


class Capabilities(TypedDict, total=False):
    """What a store promises; shown by the service and checked by `memplane.conformance`."""

    atomicBatches: bool
    strategies: Sequence[str]
    filters: Sequence[str]
    orderFields: Sequence[str]
    writers: Literal["many", "one"]
    """`one`: only within one process are versions compared and raised without a gap; absent means `many`."""


class Defaults(TypedDict, total=False):
    queryLimit: int
    searchLimit: int


class NodeInvoker(Protocol):
    """The part of the runtime that plugins may use: calling another node within the same execution."""

    def invoke(self, node: str, input: JSON, *, signal: Signal | None = None) -> Awaitable[JSON]: ...  # noqa: A002


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The second argument of every plugin method. Both fields are None when the caller gave none."""

    signal: Signal | None = None
    runtime: NodeInvoker | None = None


Status = Literal["success", "failed", "cancelled", "timeout"]
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class NodeError:
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class NodeResult(Generic[T_co]):
    """The outcome of one node call. What is absent is None; `as_wire()` leaves it out."""

    execution_id: str
    node: str
    status: Status
    output: T_co | None = None
    error: NodeError | None = None

    def as_wire(self) -> dict[str, JSON]:
        """The wire object: `output` on success (null is a value), `error` otherwise."""
        wire: dict[str, JSON] = {"executionId": self.execution_id, "node": self.node, "status": self.status}
        if self.error is None:
            wire["output"] = self.output
        else:
            wire["error"] = {"code": self.error.code, "message": self.error.message}
        return wire

    def unwrap(self) -> T_co:
        """The output of a success. Raises `NodeFailed(code, message)` otherwise."""
        if self.error is not None:
            raise NodeFailed(self.error.code, self.error.message)
        return self.output  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose memories a store sees: exactly one tenant and one user. Both are nonempty strings."""

    tenant: str
    user: str


class MemoryStore(Protocol):
    """Five CRUD methods, bound to one scope. May also have `search` (see `MemorySearchProvider`)."""

    async def get(self, input: GetInput, options: CallOptions) -> Sequence[MemoryItem]: ...  # noqa: A002
    async def query(self, input: QueryInput, options: CallOptions) -> QueryOutput: ...  # noqa: A002
    async def write(self, input: WriteInput, options: CallOptions) -> Sequence[MemoryItem]: ...  # noqa: A002
    async def update(self, input: UpdateInput, options: CallOptions) -> Sequence[MemoryItem]: ...  # noqa: A002
    async def delete(self, input: DeleteInput, options: CallOptions) -> DeleteOutput: ...  # noqa: A002


@runtime_checkable
class MemorySearchProvider(Protocol):
    async def search(self, input: SearchInput, options: CallOptions) -> Sequence[SearchHit]: ...  # noqa: A002


class StoreBackend(Protocol):
    """What a store plugin registers: a shared pool from which scoped stores are cut. No store comes unscoped.

    A backend of a server may also have `async healthy() -> bool`: the service asks it for `/readyz`.
    """

    @property
    def capabilities(self) -> Capabilities: ...
    async def start(self) -> None: ...
    async def close(self) -> None: ...
    def scoped(self, scope: Scope) -> MemoryStore: ...


class SearchBackend(Protocol):
    """What a search plugin registers: like `StoreBackend`, for search alone.

    It may also have a property `strategies`, the names that SEARCH may give: the service shows them.
    """

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    def scoped(self, scope: Scope) -> MemorySearchProvider: ...


Purpose = Literal["document", "query"]


class EmbeddingProvider(Protocol):
    """Turns texts into vectors of `dimensions` finite floats, in the order given.

    `model` and `revision` name the vector space: vectors of different pairs are never compared. A provider that holds
    connections may also have `async close()`, which the process calls at its end.
    """

    @property
    def model(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def dimensions(self) -> int: ...
    async def embed(
        self, contents: Sequence[str], *, purpose: Purpose, signal: Signal | None = None
    ) -> Sequence[Sequence[float]]: ...
