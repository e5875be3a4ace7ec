"""Which collection and embedding model are in use: one active row of `projection_generation` per target (design 7).

Readers and workers take the collection's name and the model from that row, never from an alias or the settings alone.
A change of model is a rebuild under a new generation (`memplane.rebuild`), which is `building` beside the active one
until it is switched. Workers write both: they read the rows (`read_written`) after the truth, so whoever does not see
the building row has read a truth that is older than the row, which the rebuild itself copies (decision 0018).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from memplane.errors import IdentityError
from memplane.outbox.events import Target
from memplane.schema.database import Connection, Database
from memplane.schema.identity import read_identity_on

HASH_FORMAT = 1
"""Part of every `projection_hash`: raised when the projected fields or their encoding change."""


class VectorSpace(Protocol):
    """What an embedding provider says about its vectors (`memplane.contracts.EmbeddingProvider`)."""

    @property
    def model(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def dimensions(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Generation:
    """One state of a target that readers or workers use. `collection` and the model's fields are Milvus' only."""

    id: int
    target: Target
    state: str
    backend: str
    """The backend id that owns it, as a UUID in text form."""
    collection: str = ""
    model: str = ""
    revision: str = ""
    dimensions: int = 0

    @property
    def space(self) -> str:
        """What `projection_hash` says about the object besides its fields."""
        if self.target is Target.MILVUS:
            return f"milvus:{HASH_FORMAT}:{self.id}:{self.model}:{self.revision}:{self.dimensions}"
        return f"{self.target}:{HASH_FORMAT}"

    @property
    def properties(self) -> dict[str, str]:
        """What the collection says about itself, so that nobody takes it for another one."""
        return {
            "memplane.backend": self.backend,
            "memplane.generation": str(self.id),
            "memplane.model": self.model,
            "memplane.revision": self.revision,
            "memplane.dimensions": str(self.dimensions),
        }


COLUMNS = "id, target, state, collection, embedding_model, embedding_revision, dimensions"
"""What `generation_of` reads of a row."""

_READ = f"SELECT {COLUMNS} FROM {{schema}}.projection_generation WHERE target = $1 AND state = 'active'"

_READ_WRITTEN = f"""
SELECT {COLUMNS} FROM {{schema}}.projection_generation WHERE target = $1 AND state IN ('active', 'building')
ORDER BY state = 'active' DESC
"""

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"

_NEXT_ID = "SELECT nextval(pg_get_serial_sequence($1, 'id'))"

_INSERT = """
INSERT INTO {schema}.projection_generation
    (id, target, state, collection, embedding_model, embedding_revision, dimensions, activated_at)
VALUES ($1, $2, $7, $3, $4, $5, $6, CASE WHEN $7 = 'active' THEN now() END)
"""


async def read_generation(database: Database, target: Target) -> Generation | None:
    """The active generation; None before the target's first start. Raises `IdentityError` for a cloned database."""
    async with database.acquire() as connection:
        backend = str(await read_identity_on(connection, database))
        row = await connection.fetchrow(database.sql(_READ), target.value)
    return generation_of(row, backend) if row is not None else None


async def read_written(database: Database, target: Target, backend: str) -> list[Generation]:
    """The generations that every event has to reach: the active one first, then the one that is being built.

    Read it after the truth that is to be written (decision 0018). `backend` is the identity that the process has
    checked when it started.
    """
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_READ_WRITTEN), target.value)
    return [generation_of(row, backend) for row in rows]


async def ensure_generation(database: Database, target: Target, space: VectorSpace | None = None) -> Generation:
    """The active generation, made by whichever process comes first. `space` is needed for Milvus.

    Raises `IdentityError` for a cloned database. Whether the settings fit the generation, `check_space` tells.
    """
    async with database.transaction() as connection:
        backend = str(await read_identity_on(connection, database))
        await lock_generations(connection, database, target)
        row = await connection.fetchrow(database.sql(_READ), target.value)
        if row is None:
            return await insert_generation(connection, database, target, backend, space)
    return generation_of(row, backend)


async def lock_generations(connection: Connection, database: Database, target: Target) -> None:
    """Until the end of the transaction nobody else makes or switches generations of the target."""
    await connection.execute(_LOCK, f"memplane:generation:{database.settings.schema_name}:{target}")


def same_space(one: VectorSpace, other: VectorSpace) -> bool:
    """Whether vectors of both can be compared: same model, revision and dimensions."""
    return _space(one) == _space(other)


def check_space(generation: Generation, *spaces: VectorSpace) -> None:
    """Raise `IdentityError` unless one of `spaces` is the generation's: model, revision and dimensions."""
    if not any(same_space(generation, space) for space in spaces):
        named = " and ".join(_named(*_space(space)) for space in spaces)
        raise IdentityError(
            f"The active generation of {generation.target} holds vectors of {_named(*_space(generation))}, "
            f"but the settings name {named}. Restore the settings, or name the old model in embedding_previous and "
            "run `memplane rebuild milvus`"
        )


def collection_name(backend: str, generation: int, space: VectorSpace) -> str:
    """`memplane_<backend>_<model and revision>_<dimensions>_<generation>`: legal in Milvus, unique per generation."""
    digest = hashlib.sha256(f"{space.model}\n{space.revision}".encode()).hexdigest()[:10]
    return f"memplane_{backend.replace('-', '')[:16]}_{digest}_{space.dimensions}_g{generation}"


async def insert_generation(
    connection: Connection,
    database: Database,
    target: Target,
    backend: str,
    space: VectorSpace | None,
    *,
    state: str = "active",
) -> Generation:
    """A new row in `state`; the target's lock (`lock_generations`) must be held."""
    number = int(await connection.fetchval(_NEXT_ID, f"{database.schema}.projection_generation"))
    model, revision, dimensions, collection = None, None, None, None
    if space is not None:
        model, revision, dimensions = space.model, space.revision, space.dimensions
        collection = collection_name(backend, number, space)
    await connection.execute(
        database.sql(_INSERT), number, target.value, collection, model, revision, dimensions, state
    )
    return Generation(number, target, state, backend, collection or "", model or "", revision or "", dimensions or 0)


def generation_of(row: Mapping[str, Any], backend: str) -> Generation:
    """A row of `projection_generation` (`COLUMNS`) of this backend."""
    return Generation(
        id=row["id"],
        target=Target(row["target"]),
        state=row["state"],
        backend=backend,
        collection=row["collection"] or "",
        model=row["embedding_model"] or "",
        revision=row["embedding_revision"] or "",
        dimensions=row["dimensions"] or 0,
    )


def _space(space: VectorSpace) -> tuple[str, str, int]:
    return space.model, space.revision, space.dimensions


def _named(model: str, revision: str, dimensions: int) -> str:
    return f"model {model!r}, revision {revision!r}, {dimensions} dimensions"
