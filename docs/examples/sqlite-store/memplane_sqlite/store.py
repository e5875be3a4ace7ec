"""The store of one scope. Every statement names tenant and user, whatever the input says."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from memplane import CallOptions, PluginError, Scope

if TYPE_CHECKING:
    from memplane_sqlite.backend import SqliteBackend

MAX_ID = 2**63 - 1


class SqliteStore:
    """A `MemoryStore`. Errors meant for the caller are `PluginError`; whatever else is raised is never shown."""

    def __init__(self, backend: SqliteBackend, scope: Scope) -> None:
        self._backend = backend
        self._scope = (scope.tenant, scope.user)

    async def get(self, input: Any, options: CallOptions) -> Any:
        ids = [number for text in input["ids"] if (number := _number(text)) is not None]
        keys = [_storable(key, "keys") for key in input["keys"]]

        def read(connection: sqlite3.Connection) -> Any:
            found = {row["id"]: row for number in ids for row in self._rows(connection, "id = ?", number)}
            found |= {row["id"]: row for key in keys for row in self._rows(connection, "key = ?", key)}
            return [_item(row) for row in found.values()]

        return await self._run(options, read)

    async def query(self, input: Any, options: CallOptions) -> Any:
        if input.get("filter"):
            raise PluginError("UNSUPPORTED_FILTER", "This store has no filters")
        orders = input.get("orderBy") or [{"field": "id"}]
        if any(order["field"] != "id" for order in orders):
            raise PluginError("UNSUPPORTED_ORDER", "This store orders by id alone")
        descending = orders[0].get("direction") == "desc"
        # A cursor belongs to its scope and order; it says where to go on, so nothing is skipped or seen twice.
        bound_to = sha256(json.dumps([*self._scope, descending]).encode()).hexdigest()
        after = _read_cursor(input["cursor"], bound_to) if "cursor" in input else (MAX_ID if descending else 0)
        condition = f"id {'<' if descending else '>'} ? ORDER BY id {'DESC' if descending else 'ASC'} LIMIT ?"

        def read(connection: sqlite3.Connection) -> Any:
            rows = self._rows(connection, condition, after, input["limit"] + 1)
            page = rows[: input["limit"]]
            cursor = {"nextCursor": _cursor(page[-1]["id"], bound_to)} if len(rows) > len(page) else {}
            return {"items": [_item(row) for row in page], **cursor}

        return await self._run(options, read)

    async def write(self, input: Any, options: CallOptions) -> Any:
        values = [
            (_storable(draft["key"], "key") if "key" in draft else None, *_json(draft)) for draft in input["memories"]
        ]

        def insert(connection: sqlite3.Connection) -> Any:
            sql = "INSERT INTO memory (tenant, user, key, content, metadata) VALUES (?, ?, ?, ?, ?) RETURNING *"
            try:
                return [_item(connection.execute(sql, (*self._scope, *row)).fetchone()) for row in values]
            except sqlite3.IntegrityError:
                raise PluginError("CONFLICT", "A key of this batch is taken") from None

        return await self._run(options, insert)

    async def update(self, input: Any, options: CallOptions) -> Any:
        prepared = [(entry, *_json(entry)) for entry in input["memories"]]

        def change(connection: sqlite3.Connection) -> Any:
            return [self._change(connection, entry, content, metadata) for entry, content, metadata in prepared]

        return await self._run(options, change)

    def _change(self, connection: sqlite3.Connection, entry: Any, content: str | None, metadata: str | None) -> Any:
        number = _number(entry["id"])
        rows = [] if number is None else self._rows(connection, "id = ?", number)
        if not rows:
            raise PluginError("NOT_FOUND", f"Memory {entry['id'][:40]!r} does not exist")
        _check_version(rows[0], entry.get("expectedVersion"))
        # An absent field stays; `content: null` is a value, and JSON's null is not SQL's.
        sql = (
            "UPDATE memory SET content = coalesce(?, content), metadata = coalesce(?, metadata), version = version + 1"
            " WHERE tenant = ? AND user = ? AND id = ? RETURNING *"
        )
        return _item(connection.execute(sql, (content, metadata, *self._scope, number)).fetchone())

    async def delete(self, input: Any, options: CallOptions) -> Any:
        expected = input.get("expectedVersions", {})

        def remove(connection: sqlite3.Connection) -> Any:
            numbers = [number for text in input["ids"] if (number := _number(text)) is not None]
            rows = [row for number in numbers for row in self._rows(connection, "id = ?", number)]
            for row in rows:
                _check_version(row, expected.get(str(row["id"])))
            for row in rows:
                connection.execute("DELETE FROM memory WHERE id = ?", (row["id"],))
            return {"deleted": [str(row["id"]) for row in rows]}

        return await self._run(options, remove)

    def _rows(self, connection: sqlite3.Connection, condition: str, *values: Any) -> list[sqlite3.Row]:
        sql = f"SELECT * FROM memory WHERE tenant = ? AND user = ? AND {condition}"
        return connection.execute(sql, (*self._scope, *values)).fetchall()

    async def _run(self, options: CallOptions, work: Callable[[sqlite3.Connection], Any]) -> Any:
        if options.signal is not None:
            options.signal.raise_if_aborted()
        return await self._backend.transaction(work)


def _item(row: sqlite3.Row) -> dict[str, Any]:
    item = {"id": str(row["id"]), "content": json.loads(row["content"]), "version": row["version"]}
    if row["key"] is not None:
        item["key"] = row["key"]
    if row["metadata"] is not None:
        item["metadata"] = json.loads(row["metadata"])
    return item


def _json(entry: Any) -> tuple[str | None, str | None]:
    """Content and metadata as JSON text; None for what the entry leaves out."""
    try:
        return tuple(
            json.dumps(entry[name], allow_nan=False) if name in entry else None for name in ("content", "metadata")
        )  # type: ignore[return-value]
    except (TypeError, ValueError):
        raise PluginError("INVALID_INPUT", "content and metadata must be JSON") from None


def _number(text: str) -> int | None:
    """The row of a public id; "007", "-1" and the like name none."""
    number = int(text) if text.isascii() and text.isdecimal() else 0
    return number if 0 < number <= MAX_ID and str(number) == text else None


def _storable(text: str, field: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PluginError("INVALID_INPUT", f"{field} holds characters that cannot be stored") from None
    return text


def _check_version(row: sqlite3.Row, expected: int | None) -> None:
    if expected is not None and expected != row["version"]:
        raise PluginError("CONFLICT", f"Memory {row['id']} is at version {row['version']}, not {expected}")


def _cursor(last: int, bound_to: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([bound_to, last]).encode()).decode()


def _read_cursor(cursor: str, bound_to: str) -> int:
    try:
        owner, last = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
        if owner == bound_to and type(last) is int and 0 <= last <= MAX_ID:
            return last
    except (ValueError, TypeError):
        pass
    raise PluginError("INVALID_CURSOR", "The cursor does not belong to this query")
