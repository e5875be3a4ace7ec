"""Which collection and embedding model are in use: one active row of `projection_generation` per target (design 7).

Readers and workers take the collection's name and the model from that row, never from an alias or the settings alone.
Settings that name another model are refused: a change of model is a rebuild under a new generation.
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


_READ = """
SELECT id, target, state, collection, embedding_model, embedding_revision, dimensions
FROM {schema}.projection_generation WHERE target = $1 AND state = 'active'
"""

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"

_NEXT_ID = "SELECT nextval(pg_get_serial_sequence($1, 'id'))"

_INSERT = """
INSERT INTO {schema}.projection_generation
    (id, target, state, collection, embedding_model, embedding_revision, dimensions, activated_at)
VALUES ($1, $2, 'active', $3, $4, $5, $6, now())
"""


async def read_generation(database: Database, target: Target) -> Generation | None:
    """The active generation; None before the target's first start. Raises `IdentityError` for a cloned database."""
    async with database.acquire() as connection:
        backend = str(await read_identity_on(connection, database))
        row = await connection.fetchrow(database.sql(_READ), target.value)
    return _generation(row, backend) if row is not None else None


async def ensure_generation(database: Database, target: Target, space: VectorSpace | None = None) -> Generation:
    """The active generation, made by whichever process comes first. `space` is needed for Milvus.

    Raises `IdentityError` when the active generation was made with another model, revision or dimension.
    """
    async with database.transaction() as connection:
        backend = str(await read_identity_on(connection, database))
        await connection.execute(_LOCK, f"memplane:generation:{database.settings.schema_name}:{target}")
        row = await connection.fetchrow(database.sql(_READ), target.value)
        if row is None:
            return await _insert(connection, database, target, backend, space)
    generation = _generation(row, backend)
    if space is not None:
        check_space(generation, space)
    return generation


def check_space(generation: Generation, space: VectorSpace) -> None:
    """Raise `IdentityError` unless the generation holds vectors of this model, revision and dimension."""
    made = (generation.model, generation.revision, generation.dimensions)
    asked = (space.model, space.revision, space.dimensions)
    if made != asked:
        raise IdentityError(
            f"The active generation of {generation.target} holds vectors of {_named(*made)}, "
            f"but the settings name {_named(*asked)}. Restore the settings, or run `memplane rebuild milvus`"
        )


def collection_name(backend: str, generation: int, space: VectorSpace) -> str:
    """`memplane_<backend>_<model and revision>_<dimensions>_<generation>`: legal in Milvus, unique per generation."""
    digest = hashlib.sha256(f"{space.model}\n{space.revision}".encode()).hexdigest()[:10]
    return f"memplane_{backend.replace('-', '')[:16]}_{digest}_{space.dimensions}_g{generation}"


async def _insert(
    connection: Connection, database: Database, target: Target, backend: str, space: VectorSpace | None
) -> Generation:
    number = int(await connection.fetchval(_NEXT_ID, f"{database.schema}.projection_generation"))
    model, revision, dimensions, collection = None, None, None, None
    if space is not None:
        model, revision, dimensions = space.model, space.revision, space.dimensions
        collection = collection_name(backend, number, space)
    await connection.execute(database.sql(_INSERT), number, target.value, collection, model, revision, dimensions)
    return Generation(number, target, "active", backend, collection or "", model or "", revision or "", dimensions or 0)


def _generation(row: Mapping[str, Any], backend: str) -> Generation:
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


def _named(model: str, revision: str, dimensions: int) -> str:
    return f"model {model!r}, revision {revision!r}, {dimensions} dimensions"
