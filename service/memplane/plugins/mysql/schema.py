"""The tables, as numbered forward-only steps, made at start under a named lock.

Tenant, user, key and the texts that filters compare are VARBINARY: bytes of UTF-8 compare as code points do, exactly,
trailing spaces and accents included. No collation that both MySQL 8 and MariaDB have does that (utf8mb4_bin pads with
spaces). JSON is kept as text: both servers' JSON functions change numbers. Times are microseconds since 1970, UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from memplane.errors import SchemaError
from memplane.plugins.mysql.pool import Pool, Session

_TABLE: Final = "ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

STEPS: Final[Sequence[Sequence[str]]] = (
    (
        f"""
CREATE TABLE IF NOT EXISTS memplane_memory (
    id BIGINT NOT NULL PRIMARY KEY,
    tenant VARBINARY(256) NOT NULL,
    user_id VARBINARY(256) NOT NULL,
    `key` VARBINARY(2048) NULL,
    content MEDIUMTEXT NOT NULL,
    document BOOLEAN NOT NULL,
    metadata MEDIUMTEXT NULL,
    size INT NOT NULL,
    words INT NOT NULL,
    importance DOUBLE NULL,
    category VARBINARY(1024) NULL,
    slot_hint VARBINARY(1024) NULL,
    expires_at BIGINT NULL,
    version BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE KEY memplane_memory_key (tenant, user_id, `key`),
    KEY memplane_memory_scope (tenant, user_id, id),
    KEY memplane_memory_updated (tenant, user_id, updated_at, id),
    KEY memplane_memory_expiry (expires_at)
) {_TABLE}
""",
        f"""
CREATE TABLE IF NOT EXISTS memplane_word (
    word BIGINT NOT NULL,
    memory_id BIGINT NOT NULL,
    PRIMARY KEY (word, memory_id),
    KEY memplane_word_memory (memory_id)
) {_TABLE}
""",
        f"CREATE TABLE IF NOT EXISTS memplane_sequence (name VARBINARY(64) PRIMARY KEY, last BIGINT NOT NULL) {_TABLE}",
        "INSERT IGNORE INTO memplane_sequence (name, last) VALUES ('memory', 0)",
    ),
)
"""`document` tells that `content` is the canonical JSON of something else than a string; `size` counts bytes."""

MIN_PACKET: Final = 8 * 2**20
"""Bytes that the server must accept in one statement: the largest memory, escaped, and room."""


async def prepare(pool: Pool) -> None:
    """Bring the schema up to this release. Raises `SchemaError` when it is newer, or when the server cannot hold it."""
    async with pool.acquire() as session:
        [(packet,)] = await session.rows("SELECT @@max_allowed_packet")
        if packet < MIN_PACKET:
            raise SchemaError(f"max_allowed_packet of the MySQL server must be at least {MIN_PACKET} bytes")
        wait = max(1, round(pool.settings.statement_timeout / 2))
        [(locked,)] = await session.rows("SELECT GET_LOCK(CONCAT('memplane.', LEFT(DATABASE(), 50)), %s)", [wait])
        if locked != 1:
            raise SchemaError("another process has been changing the schema of the MySQL store for too long")
        try:
            await _migrate(session)
        finally:
            if session.usable:
                await session.rows("SELECT RELEASE_LOCK(CONCAT('memplane.', LEFT(DATABASE(), 50)))")


async def _migrate(session: Session) -> None:
    await session.run(f"CREATE TABLE IF NOT EXISTS memplane_schema (version INT NOT NULL PRIMARY KEY) {_TABLE}")
    [(version,)] = await session.rows("SELECT COALESCE(MAX(version), 0) FROM memplane_schema")
    if version > len(STEPS):
        raise SchemaError(f"the schema of the MySQL store is at version {version}; this release knows {len(STEPS)}")
    for number, statements in enumerate(STEPS[version:], version + 1):
        # DDL commits by itself; every statement can be repeated when a step was cut short.
        for statement in statements:
            await session.run(statement)
        await session.run("INSERT IGNORE INTO memplane_schema (version) VALUES (%s)", [number])
