"""Migrations: numbered SQL files, forward only, each applied once (design section 5).

Invariants:
- One transaction-level advisory lock covers a whole run, so parallel `migrate` calls (every replica, the Job) are safe,
  also through a transaction-pooling proxy.
- An applied file never changes: its checksum is recorded and compared.
- The schema moves ahead of the code: an older release on a newer schema does nothing in `migrate` and goes on serving
  as long as its level is not below `min_compatible_code`. A file raises that floor by a first line of the form
  `-- min-compatible-code: 7`; it may do so only one release after the release that stopped needing the old shape.
- No role beyond the owner of the database (or of the schema, when an administrator created it) is needed.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from typing import Final

import asyncpg

from memplane.errors import SchemaError
from memplane.schema.database import Connection, Database
from memplane.schema.identity import ensure_identity_on, read_identity_on

_NAME: Final = re.compile(r"^(\d{4})_[a-z0-9_]+\.sql$")
_FLOOR: Final = re.compile(r"^-- min-compatible-code: (\d+)$", re.MULTILINE)
_TIMEOUT: Final = 3600.0
"""Seconds one migration statement may take: building an index on a large table outlasts the statement timeout."""

_FOREIGN: Final = """
SELECT EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
               WHERE n.nspname = $1 AND c.relname = 'long_term_memory')
"""

BOOKKEEPING: Final = """
CREATE TABLE IF NOT EXISTS {schema}.schema_migration (
    number     INT PRIMARY KEY,
    name       TEXT NOT NULL,
    checksum   TEXT NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS {schema}.schema_compatibility (
    singleton           BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    min_compatible_code INT NOT NULL
);
INSERT INTO {schema}.schema_compatibility (min_compatible_code) VALUES (1) ON CONFLICT DO NOTHING;
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file. `number` orders it; a release's level is the number of its newest file."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def min_compatible_code(self) -> int:
        """The level below which a release cannot serve once this file is applied; 0 when the file says nothing."""
        found = _FLOOR.search(self.text)
        return int(found.group(1)) if found else 0


def migrations() -> tuple[Migration, ...]:
    """All files of this release in order. Raises `SchemaError` for a gap or a doubled number (a broken build)."""
    found: list[Migration] = []
    for entry in resources.files("memplane.schema").joinpath("migrations").iterdir():
        named = _NAME.match(entry.name)
        if named:
            found.append(Migration(int(named.group(1)), entry.name[:-4], entry.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise SchemaError("The migrations of this release are not numbered 1, 2, 3 …")
    return tuple(found)


async def migrate(database: Database, known: tuple[Migration, ...] | None = None) -> list[str]:
    """Apply what is missing, in one transaction; returns the names applied (empty when there was nothing to do).

    Creates the schema and, the first time, the backend identity. A schema that is newer than this release is left
    alone. Raises `SchemaError` for a changed file, `IdentityError` on a cloned database. `known` is for tests.
    """
    files = migrations() if known is None else known
    async with database.transaction() as connection:
        await _lock(connection, database)
        await _create_schema(connection, database)
        await connection.execute(database.sql(BOOKKEEPING))
        applied = await _applied(connection, database)
        _compare(files, applied)
        if applied:
            await read_identity_on(connection, database)
        elif await connection.fetchval(_FOREIGN, database.settings.schema_name):
            raise SchemaError(
                f"Schema {database.settings.schema_name} has a table long_term_memory that memplane did not make: "
                "`memplane migrate --adopt` takes it over"
            )
        missing = [migration for migration in files if migration.number not in applied]
        if applied and missing and missing[0].number < max(applied):
            raise SchemaError(f"Migration {missing[0].name} is missing from a schema that is already past it")
        for migration in missing:
            await _apply(connection, database, migration)
        await ensure_identity_on(connection, database)
    return [migration.name for migration in missing]


async def check(database: Database, known: tuple[Migration, ...] | None = None) -> int:
    """Whether this release can serve on the schema; returns the schema's level.

    Raises `SchemaError`: not migrated, behind this release, changed files, or too new for this release.
    """
    files = migrations() if known is None else known
    async with database.acquire() as connection:
        try:
            applied = await _applied(connection, database)
            floor = await connection.fetchval(
                database.sql("SELECT min_compatible_code FROM {schema}.schema_compatibility")
            )
        except asyncpg.UndefinedTableError:
            raise SchemaError("The database has no schema yet: run `memplane migrate`") from None
    level, code = max(applied, default=0), files[-1].number
    if level < code:
        raise SchemaError(f"The schema is at level {level}, this release needs {code}: run `memplane migrate`")
    if code < floor:
        raise SchemaError(f"This release (level {code}) is too old for the schema, which needs at least {floor}")
    _compare(files, applied)
    return level


def _compare(files: tuple[Migration, ...], applied: dict[int, str]) -> None:
    for migration in files:
        recorded = applied.get(migration.number)
        if recorded is not None and recorded != migration.checksum:
            raise SchemaError(f"Migration {migration.name} differs from the one that was applied")


async def _lock(connection: Connection, database: Database) -> None:
    name = f"memplane.migrate:{database.settings.schema_name}"
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", name, timeout=_TIMEOUT)


async def _create_schema(connection: Connection, database: Database) -> None:
    # CREATE SCHEMA IF NOT EXISTS asks for CREATE on the database even when the schema is there.
    name = database.settings.schema_name
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", name):
        try:
            await connection.execute(database.sql("CREATE SCHEMA {schema}"))
        except asyncpg.InsufficientPrivilegeError:
            raise SchemaError(
                f"The role may not create schema {name}: GRANT CREATE ON DATABASE, or create the schema for it"
            ) from None


async def _applied(connection: Connection, database: Database) -> dict[int, str]:
    rows = await connection.fetch(database.sql("SELECT number, checksum FROM {schema}.schema_migration"))
    return {row["number"]: row["checksum"] for row in rows}


async def record(connection: Connection, database: Database, files: tuple[Migration, ...]) -> None:
    """Write down that these migrations are applied, in the caller's transaction, by somebody who has done so (an
    adoption); the backend gets its identity."""
    for migration in files:
        await _record(connection, database, migration)
    await ensure_identity_on(connection, database)


async def _apply(connection: Connection, database: Database, migration: Migration) -> None:
    await connection.execute(database.sql(migration.text), timeout=_TIMEOUT)
    await _record(connection, database, migration)


async def _record(connection: Connection, database: Database, migration: Migration) -> None:
    await connection.execute(
        database.sql("INSERT INTO {schema}.schema_migration (number, name, checksum) VALUES ($1, $2, $3)"),
        migration.number,
        migration.name,
        migration.checksum,
    )
    await connection.execute(
        database.sql(
            "UPDATE {schema}.schema_compatibility SET min_compatible_code = greatest(min_compatible_code, $1)"
        ),
        migration.min_compatible_code,
    )
