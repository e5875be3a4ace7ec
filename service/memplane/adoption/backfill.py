"""The backfill: gives every old row its values, hash and lexemes, in short transactions, in ascending id.

Rows are read without a lock, hashed here, and written if they are still the version that was read; a row that is locked
is stepped over. So the old application waits for one UPDATE of a batch at most, and no deadlock is possible. A row that
has changed meanwhile was copied by the trigger, and the settling job hashes it. A row that was stepped over still has
an empty text hash; such rows are taken up at the end, until there are none. The position is saved with each batch:
after a crash the backfill goes on where it was.
"""

from __future__ import annotations

import asyncio
import time
from hashlib import sha256
from typing import Any, Final

from memplane.adoption.hashing import HASHED_COLUMNS, Row, hash_of
from memplane.adoption.mapping import Mapping
from memplane.adoption.progress import Report
from memplane.adoption.state import State, save_position
from memplane.plugins.postgres.tokens import TOKENIZER_VERSION, search_tokens
from memplane.schema.database import Connection, Database
from memplane.settings import AdoptionSettings
from memplane.signal import Signal

FIRST_ID: Final = -(2**63)

BATCH_BYTES: Final = 8 * 2**20
"""A batch ends when its contents take so much."""

LOCKED_SECONDS: Final = 1.0

_LEFT: Final = "SELECT count(*) FROM {schema}.long_term_memory WHERE text_hash = ''"
_TAIL: Final = """
FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::bytea[], $6::text[], $7::timestamptz[])
     AS r (id, version, content_hash, text_hash, tokens, deleted_at)
WHERE m.id = r.id AND m.version = r.version AND m.content_hash = '' AND m.id = ANY (ARRAY (
    SELECT free.id FROM {schema}.long_term_memory AS free WHERE free.id = ANY ($2::bigint[])
    ORDER BY free.id FOR NO KEY UPDATE SKIP LOCKED))
"""


class Backfill:
    """The statements for one mapping."""

    def __init__(self, database: Database, mapping: Mapping, settings: AdoptionSettings) -> None:
        self._database = database
        self._settings = settings
        values = {source.field.column: _on_m(source.forward) for source in mapping.sources}
        columns = [f'{values.get(name, f"m.{name}")} AS "{name}"' for name in (*HASHED_COLUMNS, "content")]
        self._read = database.sql(
            f"SELECT m.id, m.version, {', '.join(columns)} FROM {{schema}}.long_term_memory AS m "
            "WHERE m.id > $1 AND m.content_hash = '' ORDER BY m.id LIMIT $2"
        )
        self._read_left = self._read.replace("m.content_hash = ''", "m.content_hash = '' AND m.text_hash = ''")
        # A moment that the read took from the clock must be the one that was hashed.
        moved = [
            f'"{source.field.column}" = {_on_m(source.forward)}'
            for source in mapping.sources
            if source.moves and source.field.column != "deleted_at"
        ]
        fixed = (
            "content_hash = r.content_hash, text_hash = r.text_hash, search_tokens = r.tokens::tsvector,"
            " tokens_version = $1, deleted_at = r.deleted_at"
        )
        self._write = database.sql(f"UPDATE {{schema}}.long_term_memory AS m SET {', '.join([fixed, *moved])}" + _TAIL)

    async def run(self, connection: Connection, state: State, signal: Signal, report: Report) -> bool:
        """Work to the end of the table; False when the signal stopped it."""
        position = FIRST_ID if state.position is None else state.position
        began, done = time.monotonic(), 0
        report("backfill", state.done, state.total)
        while not signal.aborted:
            rows = await connection.fetch(self._read, position, self._settings.batch_size)
            if not rows:
                return await self._take_up(connection, signal, report)
            rows = within(rows)
            position = rows[-1]["id"]
            async with connection.transaction():
                written = await self._store(connection, rows)
                await save_position(connection, self._database, position, written)
            done += written
            report("backfill", state.done + done, state.total)
            await self._keep_pace(began, done, signal)
        return False

    async def _take_up(self, connection: Connection, signal: Signal, report: Report) -> bool:
        """What was stepped over, until nothing is left: a row may be locked for as long as its transaction takes."""
        position, done = FIRST_ID, 0
        while not signal.aborted:
            rows = await connection.fetch(self._read_left, position, self._settings.batch_size)
            if rows:
                rows = within(rows)
                position = rows[-1]["id"]
                async with connection.transaction():
                    written = await self._store(connection, rows)
                    await save_position(connection, self._database, position, written)
                done += written
                continue
            left = int(await connection.fetchval(self._database.sql(_LEFT)))
            if left == 0:
                return True
            report("backfill: rows that were locked", done, done + left)
            position = FIRST_ID
            await asyncio.sleep(LOCKED_SECONDS)
        return False

    async def _store(self, connection: Connection, rows: list[Any]) -> int:
        """Write what was made of the rows; returns how many were free and unchanged."""
        done = await connection.execute(self._write, TOKENIZER_VERSION, *columns_of(rows))
        return int(done.rsplit(" ", 1)[-1])

    async def _keep_pace(self, began: float, done: int, signal: Signal) -> None:
        if self._settings.rows_per_second == 0:
            return
        early = done / self._settings.rows_per_second - (time.monotonic() - began)
        if early > 0:
            try:
                await asyncio.wait_for(signal.wait(), early)
            except TimeoutError:
                return


def within(rows: list[Any]) -> list[Any]:
    """The first of the rows whose contents stay within `BATCH_BYTES`; one at least."""
    size = 0
    for count, row in enumerate(rows):
        size += len(row["content"])
        if count and size > BATCH_BYTES:
            return rows[:count]
    return rows


def columns_of(rows: list[Row]) -> tuple[list[Any], ...]:
    """Ids, versions, hashes, text hashes, lexemes and tombstones of rows that were read."""
    text_hashes = [sha256(row["content"].encode()).digest() for row in rows]
    return (
        [row["id"] for row in rows],
        [row["version"] for row in rows],
        [hash_of(row, text_hash) for row, text_hash in zip(rows, text_hashes, strict=True)],
        text_hashes,
        [search_tokens(row["tenant"], row["user_id"], row["content"]) for row in rows],
        [row["deleted_at"] for row in rows],
    )


def _on_m(expression: str) -> str:
    return expression.replace("{r}", "m")
