"""The five methods of a memory store on PostgreSQL, bound to one scope."""

from __future__ import annotations

from collections.abc import Sequence

from memplane.contracts import (
    CallOptions,
    DeleteInput,
    DeleteOutput,
    GetInput,
    MemoryItem,
    QueryInput,
    QueryOutput,
    Scope,
    UpdateInput,
    WriteInput,
)
from memplane.plugins.postgres.calls import reading, reading_steadily
from memplane.plugins.postgres.delete import delete
from memplane.plugins.postgres.query import get, get_by_id, query
from memplane.plugins.postgres.update import update
from memplane.plugins.postgres.write import write
from memplane.plugins.postgres.writing import Writing


class PostgresStore:
    """A cheap view on the shared pool. Every statement carries its scope, whatever the input says.

    Batches are atomic. Errors: CONFLICT, NOT_FOUND, INVALID_INPUT, UNSUPPORTED_FILTER, UNSUPPORTED_ORDER,
    INVALID_CURSOR, STORE_UNAVAILABLE, STORE_BUSY.
    """

    def __init__(self, writing: Writing, scope: Scope) -> None:
        self._writing = writing
        self._database = writing.database
        self._scope = scope

    async def get(self, input: GetInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        if not input["keys"]:
            return await reading_steadily(
                self._database, options.signal, lambda: get_by_id(self._database, self._scope, input["ids"])
            )
        return await reading(
            self._database,
            options.signal,
            lambda connection: get(connection, self._database, self._scope, input["ids"], input["keys"]),
        )

    async def query(self, input: QueryInput, options: CallOptions) -> QueryOutput:  # noqa: A002
        return await reading(
            self._database, options.signal, lambda connection: query(connection, self._database, self._scope, input)
        )

    async def write(self, input: WriteInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        return await write(self._writing, self._scope, input["memories"], options.signal)

    async def update(self, input: UpdateInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        return await update(self._writing, self._scope, input["memories"], options.signal)

    async def delete(self, input: DeleteInput, options: CallOptions) -> DeleteOutput:  # noqa: A002
        expected = input.get("expectedVersions")
        return DeleteOutput(deleted=await delete(self._writing, self._scope, input["ids"], expected, options.signal))
