"""What the catalog says about the table that is to be adopted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from memplane.schema.database import Connection, Database

TABLE: Final = "long_term_memory"

_TABLE: Final = """
SELECT c.oid, c.relkind::text AS kind, c.relispartition OR EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid
           OR inhrelid = c.oid) AS inherits,
       pg_has_role(c.relowner, 'USAGE') AS owned, c.relforcerowsecurity AS hidden,
       greatest(c.reltuples, 0)::bigint AS rows,
       pg_total_relation_size(c.oid) AS bytes, pg_relation_size(c.oid) AS heap_bytes,
       pg_encoding_to_char(d.encoding) AS encoding, current_setting('server_version_num')::int AS server
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace, pg_database AS d
WHERE n.nspname = $1 AND c.relname = $2 AND d.datname = current_database()
"""
_COLUMNS: Final = """
SELECT a.attname AS name, format_type(a.atttypid, NULL) AS type, format_type(a.atttypid, a.atttypmod) AS full_type,
       a.attnotnull AS not_null, a.atthasdef AS has_default, a.attidentity::text AS identity,
       a.attgenerated::text <> '' AS generated
FROM pg_attribute AS a WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE: Final = """
SELECT i.indisprimary AS is_primary, c.relname AS name,
       ARRAY(SELECT a.attname FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
             JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
             WHERE k.place <= i.indnkeyatts ORDER BY k.place)::text[] AS columns
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
"""
_TRIGGERS: Final = "SELECT tgname::text FROM pg_trigger WHERE tgrelid = $1 AND NOT tgisinternal ORDER BY tgname"
_NAMES: Final = """
SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1
"""
_SEQUENCE: Final = "SELECT pg_get_serial_sequence($1, 'id')"


@dataclass(frozen=True, slots=True)
class Column:
    """A column as it is. `type` without, `full_type` with its modifier; `identity` is `a` for GENERATED ALWAYS."""

    name: str
    type: str
    full_type: str
    not_null: bool = False
    has_default: bool = False
    identity: str = ""
    generated: bool = False


@dataclass(frozen=True, slots=True)
class OldTable:
    """The table before its adoption. `rows` is the planner's estimate; `names` are the relations of its schema."""

    schema: str
    kind: str
    inherits: bool
    owned: bool
    hidden: bool
    rows: int
    bytes: int
    heap_bytes: int
    encoding: str
    server: int
    columns: Mapping[str, Column]
    primary_key: tuple[str, ...]
    unique: Sequence[tuple[str, frozenset[str]]]
    """Name and columns of each unique index without conditions, the primary key's left out."""
    triggers: Sequence[str]
    names: frozenset[str]
    sequence: str | None


async def read_table(connection: Connection, database: Database) -> OldTable | None:
    """The table `long_term_memory` of the schema in use; None when there is none."""
    schema = database.settings.schema_name
    table = await connection.fetchrow(_TABLE, schema, TABLE)
    if table is None:
        return None
    columns = {row["name"]: Column(**dict(row)) for row in await connection.fetch(_COLUMNS, table["oid"])}
    indexes = await connection.fetch(_UNIQUE, table["oid"])
    primary = next((tuple(row["columns"]) for row in indexes if row["is_primary"]), ())
    facts = {name: value for name, value in dict(table).items() if name != "oid"}
    return OldTable(
        schema=schema,
        columns=columns,
        primary_key=primary,
        unique=[(row["name"], frozenset(row["columns"])) for row in indexes if not row["is_primary"]],
        triggers=[row["tgname"] for row in await connection.fetch(_TRIGGERS, table["oid"])],
        names=frozenset(row["relname"] for row in await connection.fetch(_NAMES, schema)),
        sequence=await _sequence(connection, database),
        **facts,
    )


async def _sequence(connection: Connection, database: Database) -> str | None:
    try:
        sequence: str | None = await connection.fetchval(_SEQUENCE, f"{database.schema}.{TABLE}")
    except asyncpg.UndefinedColumnError:
        return None
    return sequence
