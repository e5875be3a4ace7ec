"""Context state in PostgreSQL: compare-and-set in one statement each, time from the database. Source: X-11, X-13.

Expired rows count as absent at once; later writes delete them in small batches, so that nothing has to run beside.
"""

from __future__ import annotations

import hashlib
import json
import uuid

from memplane.contracts import CallOptions
from memplane.runtime.canonical import canonical_json
from memplane.runtime.errors import DefinitionError
from memplane.schema.database import Connection, Database
from memplane.workers.context.errors import ContextError
from memplane.workers.context.items import Context
from memplane.workers.context.state import (
    DEFAULT_TTL_MS,
    Scope,
    StoredContext,
    check_ttl,
    conflict,
    scope_key,
    stored_state,
)

SWEPT_PER_WRITE = 10
"""Expired rows that one write deletes at most: more than it can have made, so they do not pile up."""

_GET = """
SELECT version, document FROM {schema}.context_state
WHERE tenant = $1 AND scope_key = $2 AND expires_at > now()
"""

_CREATE = """
INSERT INTO {schema}.context_state AS state (tenant, scope_key, version, document, expires_at)
VALUES ($1, $2, $3, $4, now() + $5 * interval '1 second')
ON CONFLICT (tenant, scope_key) DO UPDATE
    SET version = excluded.version, document = excluded.document, expires_at = excluded.expires_at
    WHERE state.expires_at <= now()
RETURNING version
"""

_REPLACE = """
UPDATE {schema}.context_state SET version = $3, document = $4, expires_at = now() + $5 * interval '1 second'
WHERE tenant = $1 AND scope_key = $2 AND version = $6 AND expires_at > now()
RETURNING version
"""

_SWEEP = """
DELETE FROM {schema}.context_state WHERE (tenant, scope_key) IN (
    SELECT tenant, scope_key FROM {schema}.context_state WHERE expires_at <= now()
    ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)
"""


class PostgresContextStore:
    """A `ContextStateStore` on the migrated database. State of one `tenant` is never seen by another."""

    def __init__(self, database: Database, *, tenant: str = "default", ttl_ms: int = DEFAULT_TTL_MS) -> None:
        if not isinstance(tenant, str) or not tenant:
            raise DefinitionError("tenant must be a nonempty string")
        self._database, self._tenant = database, tenant
        self._ttl = check_ttl(ttl_ms)

    async def get(self, scope: Scope, options: CallOptions | None = None) -> StoredContext | None:
        """The state of a scope, None when absent or expired. Raises `TargetUnavailable`."""
        async with self._database.acquire() as connection:
            row = await connection.fetchrow(self._database.sql(_GET), self._tenant, _key(scope))
        if row is None:
            return None
        try:
            document = json.loads(row["document"])
        except ValueError:
            raise ContextError("INVALID_STATE", "Stored context state is invalid") from None
        return stored_state(str(row["version"]), document)

    async def compare_and_set(
        self,
        scope: Scope,
        expected_version: str | None,
        next: Context,  # noqa: A002 - the protocol's name
        options: CallOptions | None = None,
    ) -> StoredContext:
        """Write when the version is the expected one, in one statement. Raises STATE_CONFLICT otherwise."""
        document = canonical_json(next)  # escapes U+0000 and lone surrogates, which TEXT cannot hold
        async with self._database.transaction() as connection:
            version = await self._write(connection, _key(scope), expected_version, document)
            if version is None:
                raise conflict()
            await connection.execute(self._database.sql(_SWEEP), SWEPT_PER_WRITE)
        return stored_state(str(version), json.loads(document))

    async def _write(self, connection: Connection, key: bytes, expected: str | None, document: str) -> object:
        arguments = (self._tenant, key, uuid.uuid4(), document, self._ttl)
        if expected is None:
            return await connection.fetchval(self._database.sql(_CREATE), *arguments)
        return await connection.fetchval(self._database.sql(_REPLACE), *arguments, _version(expected))


def _key(scope: Scope) -> bytes:
    return hashlib.sha256(scope_key(scope).encode()).digest()


def _version(expected: str) -> uuid.UUID:
    try:
        return uuid.UUID(expected)
    except ValueError:
        raise conflict() from None  # no version of ours, so certainly not the present one
