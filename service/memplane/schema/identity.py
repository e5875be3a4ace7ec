"""Who this backend is: a UUID bound to the physical database that holds it (design section 5).

A copy of a database (restored dump, template, snapshot of a volume with a new initdb) carries the row along; two
services on two copies would then fight over the same projected objects. So the row also keeps the server's
`system_identifier` and the database's oid, and every process compares them at start. A standby that is promoted keeps
both, so a failover changes nothing.

Not detected: two physical clones of one server (both keep the system identifier). Whoever makes one runs
`memplane doctor --new-identity` on the copy before starting a service on it.
"""

from __future__ import annotations

from uuid import UUID, uuid4

import asyncpg

from memplane.errors import IdentityError, SchemaError
from memplane.schema.database import Connection, Database

GRANT_HINT = "GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO the role of the service"

_BINDING = """
SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()) AS system_identifier,
       (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) AS database_oid
"""
_READ = "SELECT backend_id, system_identifier, database_oid FROM {schema}.backend_identity"
_INSERT = """
INSERT INTO {schema}.backend_identity (backend_id, system_identifier, database_oid) VALUES ($1, $2, $3)
ON CONFLICT (singleton) DO NOTHING
"""
_RENEW = """
INSERT INTO {schema}.backend_identity (backend_id, system_identifier, database_oid) VALUES ($1, $2, $3)
ON CONFLICT (singleton) DO UPDATE SET backend_id = excluded.backend_id, created_at = now(),
    system_identifier = excluded.system_identifier, database_oid = excluded.database_oid
"""


async def ensure_identity(database: Database) -> UUID:
    """The backend's id; created when the database has none yet.

    Raises `IdentityError` when the row was made in another database (a clone), `SchemaError` before the first migrate.
    """
    async with database.transaction() as connection:
        return await ensure_identity_on(connection, database)


async def ensure_identity_on(connection: Connection, database: Database) -> UUID:
    """`ensure_identity` within the caller's transaction."""
    system_identifier, oid = await _binding(connection)
    await connection.execute(database.sql(_INSERT), uuid4(), system_identifier, oid)
    return await read_identity_on(connection, database)


async def read_identity(database: Database) -> UUID:
    """The backend's id, checked against the database that answers.

    Raises `IdentityError` when the database is a clone of the one that the id was made for, `SchemaError` when there
    is no identity yet.
    """
    async with database.acquire() as connection:
        return await read_identity_on(connection, database)


async def read_identity_on(connection: Connection, database: Database) -> UUID:
    """`read_identity` on the caller's connection."""
    try:
        row = await connection.fetchrow(database.sql(_READ))
    except asyncpg.UndefinedTableError:
        row = None
    if row is None:
        raise SchemaError("The database has no backend identity: run `memplane migrate`")
    if (row["system_identifier"], row["database_oid"]) != await _binding(connection):
        raise IdentityError(
            "This database is a copy of the one that its backend identity was made for. If the original still runs, "
            "or ever will, give this copy an identity of its own: `memplane doctor --new-identity`"
        )
    backend_id: UUID = row["backend_id"]
    return backend_id


async def renew_identity(database: Database, *, keep_id: bool = False) -> UUID:
    """Bind the backend to the database that answers; returns its id.

    By default the backend gets a new id, and its projections are filled anew under it. `keep_id` keeps the id: right
    only when the original is gone for good (a major upgrade, a move by dump and restore).
    """
    async with database.transaction() as connection:
        system_identifier, oid = await _binding(connection)
        kept = await connection.fetchval(database.sql("SELECT backend_id FROM {schema}.backend_identity"))
        backend_id: UUID = kept if keep_id and kept is not None else uuid4()
        await connection.execute(database.sql(_RENEW), backend_id, system_identifier, oid)
    return backend_id


async def _binding(connection: Connection) -> tuple[str, int]:
    """What tells one physical database from another. Every role may read it unless the server was hardened."""
    try:
        row = await connection.fetchrow(_BINDING)
    except asyncpg.InsufficientPrivilegeError:
        # Going on without it would let two clones share one id, so this is an error, with its cure.
        raise IdentityError(f"The server's system identifier cannot be read: {GRANT_HINT}") from None
    assert row is not None
    return str(row["system_identifier"]), int(row["database_oid"])
