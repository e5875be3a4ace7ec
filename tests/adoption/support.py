"""What must be true of an adopted table, checked by reading all of it."""

from __future__ import annotations

import json
from typing import Any

import asyncpg

from memplane.plugins.postgres.hashes import Hashed, content_hash
from memplane.plugins.postgres.tokens import search_tokens
from memplane.schema.canonical import canonical
from memplane.schema.database import Database
from tests.adoption.old_application import Account

ROWS = "SELECT *, sha256(convert_to(content, 'UTF8')) AS digest FROM {schema}.long_term_memory ORDER BY id"


def hash_by_hand(row: Any) -> str:
    """What the hash of a stored row must be, by the store's own rule."""
    metadata = None if row["metadata"] is None else canonical(json.loads(row["metadata"]))
    names = ("tenant", "user_id", "key", "importance", "category", "tags", "slot_hint", "expires_at")
    return content_hash(
        Hashed(
            memory_id=row["id"], text_hash=row["digest"], is_document=row["document"] is not None, metadata=metadata,
            version=row["version"], deleted_at=row["deleted_at"], **{name: row[name] for name in names},
        )
    )  # fmt: skip


async def check_rows(database: Database, *, marked: bool = False) -> list[Any]:
    """Every row's hashes and lexemes are right; `marked`: changes that wait to be hashed are let pass."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(ROWS))
        for row in rows:
            assert row["text_hash"] == row["digest"], row["id"]
            if marked and not row["content_hash"]:
                continue
            assert row["content_hash"] == hash_by_hand(row), row["id"]
        current = [row for row in rows if row["tokens_version"] == 1]
        wrong = await connection.fetch(
            database.sql(
                "SELECT m.id FROM {schema}.long_term_memory AS m"
                " JOIN unnest($1::bigint[], $2::text[]) AS r (id, tokens)"
                " ON r.id = m.id WHERE m.tokens_version = 1 AND m.search_tokens IS DISTINCT FROM r.tokens::tsvector"
            ),
            [row["id"] for row in current],
            [search_tokens(row["tenant"], row["user_id"], row["content"]) for row in current],
        )
        assert wrong == []
    return list(rows)


async def check_account(connection: asyncpg.Connection, database: Database, account: Account) -> None:
    """Nothing that the old application wrote is lost, nothing that it deleted is there, no statement failed."""
    assert account.errors == []
    assert account.statements > 20
    rows = await connection.fetch(
        database.sql("SELECT id, content FROM {schema}.long_term_memory WHERE deleted_at IS NULL")
    )
    live = {row["id"]: row["content"] for row in rows}
    assert {memory_id: live.get(memory_id) for memory_id in account.contents} == account.contents
    assert not account.gone & live.keys()


async def shape_of(database: Database) -> dict[str, set[tuple[Any, ...]]]:
    """Columns and indexes of the table, as far as memplane's code depends on them."""
    schema = database.settings.schema_name
    async with database.acquire() as connection:
        columns = await connection.fetch(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
            " WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped",
            f"{schema}.long_term_memory",
        )
        indexes = await connection.fetch(
            "SELECT indexname, regexp_replace(indexdef, 'CONCURRENTLY ', '') FROM pg_indexes"
            " WHERE schemaname = $1 AND tablename = 'long_term_memory'",
            schema,
        )
        others = await connection.fetch(
            "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
            " WHERE table_schema = $1 AND table_name <> 'long_term_memory'",
            schema,
        )
    return {
        "columns": {tuple(row) for row in columns},
        "indexes": {tuple(row) for row in indexes},
        "others": {tuple(row) for row in others},
    }
