"""The methods of a memory store on MySQL, bound to one scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from memplane.contracts import (
    CallOptions,
    DeleteInput,
    DeleteOutput,
    GetInput,
    MemoryItem,
    QueryInput,
    QueryOutput,
    Scope,
    SearchHit,
    SearchInput,
    UpdateInput,
    WriteInput,
)
from memplane.plugins.mysql import changes, keyword, reads
from memplane.plugins.mysql.calls import changing, reading, snapshot
from memplane.plugins.mysql.pool import Pool
from memplane.plugins.records.batches import expected_versions, prepare_drafts, prepare_entries
from memplane.schema.ids import parse_id
from memplane.signal import Signal

Draw = Callable[[int, Signal | None], Awaitable[int]]


class MysqlStore:
    """A cheap view on the shared pool. Every statement carries its scope, whatever the input says.

    Batches are atomic. Errors: CONFLICT, NOT_FOUND, INVALID_INPUT, UNSUPPORTED_FILTER, UNSUPPORTED_ORDER,
    UNSUPPORTED_STRATEGY, INVALID_CURSOR, STORE_UNAVAILABLE, STORE_BUSY.
    """

    def __init__(self, pool: Pool, scope: Scope, draw: Draw, *, require_expected_version: bool) -> None:
        self._pool = pool
        self._scope = scope
        self._draw = draw
        self._require_expected_version = require_expected_version

    async def get(self, input: GetInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        return await reading(
            self._pool,
            options.signal,
            lambda session: reads.get(session, self._scope, input["ids"], input["keys"]),
        )

    async def query(self, input: QueryInput, options: CallOptions) -> QueryOutput:  # noqa: A002
        plan = reads.plan(self._scope, input)
        return await snapshot(self._pool, options.signal, lambda session: reads.query(session, self._scope, plan))

    async def search(self, input: SearchInput, options: CallOptions) -> Sequence[SearchHit]:  # noqa: A002
        condition = keyword.parsed(input.get("filter"))
        question = keyword.ask(self._scope, input["query"], input.get("strategy"), condition, input["limit"])
        return await snapshot(
            self._pool, options.signal, lambda session: keyword.search(session, self._scope, question)
        )

    async def write(self, input: WriteInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        drafts = prepare_drafts(input["memories"])
        if not drafts:
            return []
        first = await self._draw(len(drafts), options.signal)
        return await changing(self._pool, options.signal, changes.Writing(self._scope, drafts, first).run)

    async def update(self, input: UpdateInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        entries = prepare_entries(input["memories"], require_expected_version=self._require_expected_version)
        if not entries:
            return []
        return await changing(self._pool, options.signal, lambda session: changes.update(session, self._scope, entries))

    async def delete(self, input: DeleteInput, options: CallOptions) -> DeleteOutput:  # noqa: A002
        ids = input["ids"]
        expected = expected_versions(ids, input.get("expectedVersions"), required=self._require_expected_version)
        wanted = {number: text for text in ids if (number := parse_id(text)) is not None}
        if not wanted:
            return DeleteOutput(deleted=[])
        return DeleteOutput(
            deleted=await changing(
                self._pool, options.signal, lambda session: changes.delete(session, self._scope, wanted, expected)
            )
        )
