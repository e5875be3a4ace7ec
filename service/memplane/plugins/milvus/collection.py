"""The two collections of the store, and every call on them.

Every decision is taken on a read with Strong consistency: it sees what any process had written before it began. Bodies
of rows that such a read has found are fetched with an eventual one and compared by version; what differs is read again,
strongly.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from memplane.contracts import EmbeddingProvider, Scope
from memplane.errors import IdentityError
from memplane.plugins.milvus.rows import BODY_FIELDS, CONTENT_FIELDS, LIGHT_FIELDS, METADATA_FIELDS, Row
from memplane.projections.errors import ProjectionMissing, ProjectionRefused
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_collection import INDEX, LOAD_SECONDS
from memplane.projections.milvus_row import TEXT_BYTES, microseconds
from memplane.projections.milvus_search import EF_SLACK, MIN_EF, quoted

VERSION: Final = "1"
WINDOW: Final = 8_192
"""Rows without bodies that one read asks for."""

CALL_BYTES: Final = 8 * 2**20
"""Bytes of bodies that one call moves; one row at least."""

CALL_ROWS: Final = 1_000
ID_BLOCK: Final = 256
"""Ids drawn at a time, at least."""

_VARCHARS: Final[Mapping[str, int]] = {
    "tenant": 256,
    "user_id": 256,
    "key": 2048,
    "category": 1024,
    "slot_hint": 1024,
    **dict.fromkeys((*METADATA_FIELDS, *CONTENT_FIELDS), TEXT_BYTES),
}
_INTEGERS: Final = ("version", "created_at", "updated_at", "expires_at", "size", "metadata_size")
_BOOLEANS: Final = ("whole", "document", "described")
_JSONS: Final = ("tags", "metadata")


class Collection:
    """Memories of all scopes. `open` before anything else. Raises what `MilvusConnection.call` raises."""

    def __init__(self, milvus: MilvusConnection, name: str, embedding: EmbeddingProvider) -> None:
        self.milvus = milvus
        self.name = name
        self.embedding = embedding
        self._ids: deque[int] = deque()
        self._drawing = asyncio.Lock()

    async def open(self) -> None:
        """Make both collections or check them. Raises `IdentityError` for vectors of another model."""
        described = await self._describe(self.name)
        if described is None:
            # Another process may make it at the same moment; then it is checked like any other.
            with contextlib.suppress(ProjectionRefused):
                await self._create()
            described = await self._describe(self.name)
            if described is None:
                raise ProjectionMissing("milvus", self.name)
        self._check(described)
        if "vector" not in await self.milvus.call("list_indexes", self.name):
            from pymilvus import MilvusClient

            parameters = MilvusClient.prepare_index_params()
            parameters.add_index("vector", index_name="vector", **INDEX)
            await self.milvus.call("create_index", self.name, parameters, timeout=LOAD_SECONDS, sync=False)
        await self.milvus.call("load_collection", self.name, timeout=LOAD_SECONDS)
        if await self._describe(self._sequence) is None:
            with contextlib.suppress(ProjectionRefused):
                await self._create_sequence()

    async def drop(self) -> None:
        """Drop both collections with all memories."""
        for name in (self.name, self._sequence):
            await self.milvus.call("drop_collection", name)

    async def draw(self, count: int) -> list[int]:
        """New ids, ascending: the server gives each out once, to whatever process."""
        async with self._drawing:
            while len(self._ids) < count:
                rows = [{"vector": [0.0, 0.0]}] * max(ID_BLOCK, count - len(self._ids))
                answer = await self.milvus.call("insert", self._sequence, rows)
                self._ids.extend(sorted(int(number) for number in answer["ids"]))
            return [self._ids.popleft() for _ in range(count)]

    async def find(self, scope: Scope, condition: str, *, after: int = 0, limit: int = WINDOW) -> list[Row]:
        """Rows of the scope, live or expired, with `LIGHT_FIELDS`, ascending by id from above `after`."""
        return await self._query(f"{scoped(scope)} and memory_id > {after} and {condition}", LIGHT_FIELDS, limit=limit)

    async def find_ids(self, scope: Scope, ids: Iterable[int], *, live: bool = True) -> dict[int, Row]:
        """The rows of the scope among `ids`, with `LIGHT_FIELDS`."""
        condition = f"{scoped(scope)} and {alive()}" if live else scoped(scope)
        found: dict[int, Row] = {}
        for chunk in _chunks(sorted(set(ids)), WINDOW):
            for row in await self._query(f"{condition} and memory_id in {chunk}", LIGHT_FIELDS):
                found[row["memory_id"]] = row
        return found

    async def find_keys(self, scope: Scope, keys: Sequence[str], *, live: bool) -> list[Row]:
        """The rows of the scope with one of the keys, with `LIGHT_FIELDS`."""
        condition = f"{scoped(scope)} and {alive()}" if live else scoped(scope)
        wanted = set(keys)
        found: list[Row] = []
        for chunk in _chunks(list(keys), 200):
            listed = ", ".join(map(quoted, chunk))
            found += await self._query(f"{condition} and key in [{listed}]", LIGHT_FIELDS)
        return [row for row in found if row["key"] in wanted]

    async def metadata(self, rows: Sequence[Row]) -> list[Row]:
        """The same rows with `METADATA_FIELDS`, as they are now; rows that have gone are left out."""
        return await self._again(rows, (*LIGHT_FIELDS, *METADATA_FIELDS), "metadata_size")

    async def bodies(self, rows: Sequence[Row], *, vectors: bool = False) -> list[Row]:
        """The same rows with `BODY_FIELDS`, as they are now; rows that have gone are left out."""
        return await self._again(rows, (*BODY_FIELDS, "vector") if vectors else BODY_FIELDS, "size")

    async def insert(self, rows: Sequence[Row]) -> None:
        for batch in sized(rows, "size"):
            await self.milvus.call("insert", self.name, batch)

    async def replace(self, rows: Sequence[Row]) -> None:
        for batch in sized(rows, "size"):
            await self.milvus.call("upsert", self.name, batch)

    async def delete(self, ids: Sequence[int]) -> None:
        for chunk in _chunks(list(ids), WINDOW):
            await self.milvus.call("delete", self.name, ids=chunk)

    async def nearest(self, vector: Sequence[float], condition: str, limit: int) -> list[tuple[Row, float]]:
        """The nearest rows with `LIGHT_FIELDS` and their cosine, best first, ties by id."""
        answer = await self.milvus.call(
            "search",
            self.name,
            data=[list(vector)],
            filter=condition,
            limit=limit,
            output_fields=list(LIGHT_FIELDS),
            anns_field="vector",
            search_params={"metric_type": "COSINE", "params": {"ef": min(max(limit * EF_SLACK, MIN_EF), 32_768)}},
            consistency_level="Strong",
        )
        hits = [(hit["entity"], float(hit["distance"])) for hit in (answer[0] if answer else [])]
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]["memory_id"]))

    async def _again(self, rows: Sequence[Row], fields: Sequence[str], size: str) -> list[Row]:
        found: dict[int, Row] = {}
        for batch in sized(rows, size):
            versions = {row["memory_id"]: row["version"] for row in batch}
            read = await self._query(f"memory_id in {sorted(versions)}", fields, consistency="Eventually")
            known = {row["memory_id"]: row for row in read if versions.get(row["memory_id"]) == row["version"]}
            missing = sorted(set(versions) - set(known))
            if missing:
                read = await self._query(f"memory_id in {missing}", fields)
                known.update((row["memory_id"], row) for row in read)
            found.update(known)
        return [found[row["memory_id"]] for row in rows if row["memory_id"] in found]

    async def _query(
        self, condition: str, fields: Sequence[str], *, limit: int = WINDOW, consistency: str = "Strong"
    ) -> list[Row]:
        rows: list[Row] = await self.milvus.call(
            "query",
            self.name,
            filter=condition,
            output_fields=list(fields),
            limit=limit,
            consistency_level=consistency,
        )
        return sorted(rows, key=lambda row: int(row["memory_id"]))

    @property
    def _sequence(self) -> str:
        return f"{self.name}_ids"

    @property
    def _properties(self) -> dict[str, str]:
        return {
            "memplane.store": VERSION,
            "memplane.model": self.embedding.model,
            "memplane.revision": self.embedding.revision,
            "memplane.dimensions": str(self.embedding.dimensions),
        }

    def _check(self, described: Mapping[str, Any]) -> None:
        stated = {key: str(value) for key, value in dict(described.get("properties") or {}).items()}
        for key, expected in self._properties.items():
            if stated.get(key) != expected:
                found = repr(stated[key]) if key in stated else "nothing"
                raise IdentityError(f"Collection {self.name} states {found} as {key}, not {expected!r}")

    async def _describe(self, name: str) -> Mapping[str, Any] | None:
        try:
            described: Mapping[str, Any] = await self.milvus.call("describe_collection", name)
        except ProjectionMissing:
            return None
        return described

    async def _create(self) -> None:
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description="memplane store")
        schema.add_field("memory_id", DataType.INT64, is_primary=True)
        for name, length in _VARCHARS.items():
            schema.add_field(name, DataType.VARCHAR, max_length=length)
        for names, kind in ((_INTEGERS, DataType.INT64), (_BOOLEANS, DataType.BOOL), (_JSONS, DataType.JSON)):
            for name in names:
                schema.add_field(name, kind)
        schema.add_field("importance", DataType.DOUBLE)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.embedding.dimensions)
        await self.milvus.call(
            "create_collection",
            self.name,
            schema=schema,
            consistency_level="Strong",
            properties=self._properties,
            timeout=LOAD_SECONDS,
        )

    async def _create_sequence(self) -> None:
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=True, enable_dynamic_field=False, description="memplane ids")
        schema.add_field("id", DataType.INT64, is_primary=True, auto_id=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)
        # What was given out is of no more use: the rows go by themselves after an hour.
        await self.milvus.call(
            "create_collection",
            self._sequence,
            schema=schema,
            properties={"collection.ttl.seconds": "3600"},
            timeout=LOAD_SECONDS,
        )


def scoped(scope: Scope) -> str:
    """What every read is restricted to."""
    return f"tenant == {quoted(scope.tenant)} and user_id == {quoted(scope.user)}"


def now() -> int:
    """Microseconds since 1970 by this process's clock; Milvus has none to ask."""
    return microseconds(datetime.now(UTC))


def alive() -> str:
    """Not expired."""
    return f"(expires_at == -1 or expires_at > {now()})"


def sized(rows: Sequence[Row], size: str) -> Iterator[list[Row]]:
    """`rows` in lists that fit into one call; `size` names the field that counts."""
    batch: list[Row] = []
    used = 0
    for row in rows:
        if batch and (used + row[size] > CALL_BYTES or len(batch) == CALL_ROWS):
            yield batch
            batch, used = [], 0
        batch.append(row)
        used += row[size]
    if batch:
        yield batch


def _chunks(values: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
