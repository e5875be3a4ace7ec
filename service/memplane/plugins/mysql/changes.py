"""WRITE, UPDATE and DELETE, each in one transaction, locks in ascending order of ids."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from memplane.contracts import MemoryItem, Scope
from memplane.errors import PluginError
from memplane.plugins.mysql.calls import StartOver
from memplane.plugins.mysql.errors import DuplicateKey
from memplane.plugins.mysql.filters import microseconds
from memplane.plugins.mysql.pool import Row, Session
from memplane.plugins.mysql.rows import LIVE, NOW, SCOPED, Stored, read_items, scope_arguments
from memplane.plugins.mysql.words import words_of
from memplane.plugins.postgres.documents import Content, Metadata
from memplane.plugins.postgres.reserved import Reserved
from memplane.plugins.records.batches import (
    Draft,
    Entry,
    check_expected,
    check_present,
    check_targets,
    relation_targets,
)
from memplane.schema.ids import quoted

STATEMENT_BYTES: Final = 2 * 2**20
"""Bytes of values per statement; one memory at least. Escaped, that is below what `schema` demands of the server."""

WORD_ROWS: Final = 10_000
"""Rows of words per statement."""

_COLUMNS: Final = (
    "id, tenant, user_id, `key`, content, document, metadata, size, words, importance, category, slot_hint, "
    "expires_at, version, created_at, updated_at"
)
_ROW: Final = f"({', '.join(['%s'] * 16)})"


class Writing:
    """One WRITE; `run` may be called again after a rollback. `first_id` is the first of as many ids as drafts."""

    def __init__(self, scope: Scope, drafts: Sequence[Draft], first_id: int) -> None:
        self._scope = scope
        self._drafts = drafts
        self._ids = range(first_id, first_id + len(drafts))
        self._words = [words_of(scope, draft.content.text) for draft in drafts]
        self._key_taken = False

    async def run(self, session: Session) -> list[MemoryItem]:
        """Insert all. Raises CONFLICT, INVALID_INPUT for a relation to nothing, `StartOver`."""
        await self._check_relations(session)
        if self._key_taken:
            await self._bury_expired_holders(session)
        [(now,)] = await session.rows(f"SELECT {NOW}")
        try:
            await self._insert(session, now)
        except DuplicateKey:
            # Who holds the key is looked up in a new transaction, which sees what was committed meanwhile.
            self._key_taken = True
            raise StartOver from None
        await _store_words(session, zip(self._ids, self._words, strict=True))
        return [self._item(index, now) for index in range(len(self._drafts))]

    async def _check_relations(self, session: Session) -> None:
        targets = relation_targets([draft.metadata for draft in self._drafts])
        live: set[int] = set()
        if targets:
            statement = f"SELECT m.id FROM memplane_memory AS m FORCE INDEX (PRIMARY) WHERE {SCOPED} AND m.id IN %s"
            rows = await session.rows(
                f"{statement} ORDER BY m.id LOCK IN SHARE MODE",
                [*scope_arguments(self._scope), tuple(sorted(targets))],
            )
            live = {row[0] for row in rows}
        for index, draft in enumerate(self._drafts):
            check_targets(draft.reserved, live, f"memories[{index}]")

    async def _bury_expired_holders(self, session: Session) -> None:
        keys = sorted({draft.key for draft in self._drafts if draft.key is not None})
        rows = await session.rows(
            f"SELECT m.id, m.`key`, {LIVE} FROM memplane_memory AS m "
            "WHERE m.tenant = %s AND m.user_id = %s AND m.`key` IN %s ORDER BY m.`key` FOR UPDATE",
            [*scope_arguments(self._scope), tuple(key.encode() for key in keys)],
        )
        for _, key, live in rows:
            if live:
                raise PluginError("CONFLICT", f"Key {quoted(key.decode())} is taken")
        await remove(session, [row[0] for row in rows])

    async def _insert(self, session: Session, now: int) -> None:
        rows = [self._row(index, now) for index in range(len(self._drafts))]
        if any(draft.key is not None for draft in self._drafts):
            # Batches meet each other's keys in one order.
            rows.sort(key=lambda row: (row[3] is not None, row[3] or b""))
        for batch in _batches(rows, lambda row: row[7] + 1024):
            values = [value for row in batch for value in row]
            await session.run(
                f"INSERT INTO memplane_memory ({_COLUMNS}) VALUES {', '.join([_ROW] * len(batch))}", values
            )

    def _row(self, index: int, now: int) -> Row:
        draft = self._drafts[index]
        return (
            self._ids[index],
            *scope_arguments(self._scope),
            None if draft.key is None else draft.key.encode(),
            *_content_columns(draft.content),
            None if draft.metadata is None else draft.metadata.text,
            _size(draft.content, draft.metadata),
            len(self._words[index]),
            *_reserved_columns(draft.reserved),
            1,
            now,
            now,
        )

    def _item(self, index: int, now: int) -> MemoryItem:
        draft = self._drafts[index]
        metadata = None if draft.metadata is None else draft.metadata.text
        return Stored(self._ids[index], draft.key, metadata, 1, now, now).item(*_content_columns(draft.content))


async def update(session: Session, scope: Scope, entries: Sequence[Entry]) -> list[MemoryItem]:
    """Apply all entries. Raises NOT_FOUND, CONFLICT, INVALID_INPUT."""
    targets = relation_targets([entry.metadata for entry in entries])
    ids = {entry.memory_id for entry in entries if entry.memory_id is not None}
    live = await _lock(session, scope, ids | targets)
    for entry in entries:
        row = None if entry.memory_id is None else live.get(entry.memory_id)
        check_present(entry, None if row is None else row[1])
    for entry in entries:
        if entry.metadata is not None:
            check_targets(entry.metadata.reserved, live, f"memories[{entry.index}]", itself=entry.memory_id)
    await _store_contents(session, scope, [entry for entry in entries if entry.content is not None])
    await _store_metadata(session, [entry for entry in entries if entry.metadata is not None])
    numbers = [entry.memory_id for entry in entries if entry.memory_id is not None]
    await session.run(
        "UPDATE memplane_memory AS m SET m.version = m.version + 1, "
        "m.size = LENGTH(m.content) + COALESCE(LENGTH(m.metadata), 0), "
        f"m.updated_at = GREATEST(m.updated_at, {NOW}) WHERE m.id IN %s",
        [tuple(numbers)],
    )
    # What was just given an expiry in the past is still the answer to this call.
    items = await read_items(session, scope, numbers, live=False)
    return [items[number] for number in numbers]


async def delete(session: Session, scope: Scope, wanted: Mapping[int, str], expected: Mapping[str, int]) -> list[str]:
    """Remove the live memories among `wanted`; their public ids in the order of `wanted`. Raises CONFLICT."""
    live = await _lock(session, scope, set(wanted))
    for number, text in wanted.items():
        if number in live:
            check_expected(text, live[number][1], expected.get(text))
    await remove(session, sorted(live))
    return [text for number, text in wanted.items() if number in live]


async def remove(session: Session, ids: Sequence[int]) -> None:
    """Remove rows that are locked, with their words."""
    if ids:
        await session.run("DELETE FROM memplane_memory WHERE id IN %s", [tuple(ids)])
        await session.run("DELETE FROM memplane_word WHERE memory_id IN %s", [tuple(ids)])


async def sweep(session: Session, limit: int) -> int:
    """Remove up to `limit` expired memories of any scope; how many. Rows that somebody locks are left for next time."""
    rows = await session.rows(
        f"SELECT id FROM memplane_memory WHERE expires_at <= {NOW} LIMIT %s FOR UPDATE SKIP LOCKED", [limit]
    )
    await remove(session, sorted(row[0] for row in rows))
    return len(rows)


async def _lock(session: Session, scope: Scope, ids: Collection[int]) -> dict[int, Row]:
    """The live memories of the scope among `ids`, locked in ascending order: (id, version)."""
    if not ids:
        return {}
    rows = await session.rows(
        f"SELECT m.id, m.version FROM memplane_memory AS m FORCE INDEX (PRIMARY) WHERE {SCOPED} AND m.id IN %s "
        "ORDER BY m.id FOR UPDATE",
        [*scope_arguments(scope), tuple(sorted(ids))],
    )
    return {row[0]: row for row in rows}


async def _store_contents(session: Session, scope: Scope, entries: Sequence[Entry]) -> None:
    rows: list[Row] = []
    words: list[tuple[int, list[int]]] = []
    for entry in entries:
        assert entry.content is not None
        assert entry.memory_id is not None
        words.append((entry.memory_id, words_of(scope, entry.content.text)))
        rows.append((entry.memory_id, *_content_columns(entry.content), len(words[-1][1])))
    if not rows:
        return
    await _join_update(session, rows, ("content", "document", "words"))
    await session.run("DELETE FROM memplane_word WHERE memory_id IN %s", [tuple(row[0] for row in rows)])
    await _store_words(session, words)


async def _store_metadata(session: Session, entries: Sequence[Entry]) -> None:
    rows: list[Row] = []
    for entry in entries:
        assert entry.metadata is not None
        rows.append((entry.memory_id, entry.metadata.text, *_reserved_columns(entry.metadata.reserved)))
    if rows:
        await _join_update(session, rows, ("metadata", "importance", "category", "slot_hint", "expires_at"))


async def _join_update(session: Session, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Set `columns` of many rows with a few statements; each row is an id and a value per column."""
    first = ", ".join(f"%s AS {name}" for name in ("id", *columns))
    other = ", ".join(["%s"] * (len(columns) + 1))
    changes = ", ".join(f"m.{name} = r.{name}" for name in columns)
    for batch in _batches(rows, lambda row: len(row[1].encode()) + 1024):
        union = " UNION ALL ".join([f"SELECT {first}", *[f"SELECT {other}"] * (len(batch) - 1)])
        await session.run(
            f"UPDATE memplane_memory AS m JOIN ({union}) AS r ON m.id = r.id SET {changes}",
            [value for row in batch for value in row],
        )


async def _store_words(session: Session, words: Iterable[tuple[int, Sequence[int]]]) -> None:
    # Numbers only, so they may stand in the statement itself; as arguments they would take far longer.
    rows = sorted((word, memory_id) for memory_id, listed in words for word in listed)
    for start in range(0, len(rows), WORD_ROWS):
        values = ",".join(f"({word:d},{memory_id:d})" for word, memory_id in rows[start : start + WORD_ROWS])
        await session.run(f"INSERT INTO memplane_word (word, memory_id) VALUES {values}")


def _content_columns(content: Content) -> tuple[str, bool]:
    return content.text, content.document is not None


def _reserved_columns(reserved: Reserved) -> tuple[float | None, bytes | None, bytes | None, int | None]:
    return (
        reserved.importance,
        None if reserved.category is None else reserved.category.encode(),
        None if reserved.slot_hint is None else reserved.slot_hint.encode(),
        None if reserved.expires_at is None else microseconds(reserved.expires_at),
    )


def _size(content: Content, metadata: Metadata | None) -> int:
    return len(content.text.encode()) + (0 if metadata is None else len(metadata.text.encode()))


def _batches(rows: Sequence[Row], size: Callable[[Row], int]) -> Iterator[list[Row]]:
    """`rows` in lists that fit into one statement."""
    batch: list[Row] = []
    used = 0
    for row in rows:
        used += size(row)
        if batch and (used > STATEMENT_BYTES or len(batch) == 500):
            yield batch
            batch, used = [], size(row)
        batch.append(row)
    if batch:
        yield batch
