"""Values of the old table that memplane could not work with, looked for before anything is changed."""

from __future__ import annotations

from typing import Final

from memplane.adoption.fields import MAX_KEY, MAX_NAME, Source
from memplane.adoption.mapping import Mapping
from memplane.errors import SettingsError
from memplane.plugins.postgres.documents import MAX_SCOPE_BYTES
from memplane.schema.database import Connection, Database

SCAN_SECONDS: Final = 3600.0

_NAME: Final = (f"length({{c}}) NOT BETWEEN 1 AND {MAX_NAME}", f"are empty or longer than {MAX_NAME} characters")
_SCOPE: Final = (f"octet_length({{c}}::text) NOT BETWEEN 1 AND {MAX_SCOPE_BYTES}",
                 f"are empty or longer than {MAX_SCOPE_BYTES} bytes")  # fmt: skip
_ABSENT: Final = ("{c} IS NULL", "have none")

_IN_PLACE: Final = {
    "key": [(f"length({{c}}) NOT BETWEEN 1 AND {MAX_KEY}", f"are empty or longer than {MAX_KEY} characters")],
    "metadata": [("jsonb_typeof({c}) <> 'object'", "are no objects")],
    "importance": [("{c} NOT BETWEEN 0 AND 1", "do not lie in 0..1")],
    "category": [_NAME],
    "slot_hint": [_NAME],
    "tags": [("array_ndims({c}) > 1 OR array_position({c}, NULL) IS NOT NULL OR array_position({c}, '') IS NOT NULL",
              "hold more than a list of nonempty texts")],
}  # fmt: skip
"""Copied values are brought into shape on the way; those that are used in place have to be right."""


async def check_values(connection: Connection, database: Database, mapping: Mapping) -> None:
    """Read the table once. Raises `SettingsError` that names each field and how many rows speak against it."""
    found = [(source, condition, text) for source in mapping.sources for condition, text in _conditions(source)]
    if not found:
        return
    counts = ", ".join(
        f"count(*) FILTER (WHERE {condition.replace('{c}', 'm.' + source.quoted)})" for source, condition, _ in found
    )
    row = await connection.fetchrow(
        database.sql(f"SELECT {counts} FROM {{schema}}.long_term_memory AS m"), timeout=SCAN_SECONDS
    )
    assert row is not None
    reasons = [
        f"- adoption.columns.{source.field.name}: {count} values of {source.column.name} {text}"
        for (source, _, text), count in zip(found, row, strict=True)
        if count
    ]
    if reasons:
        cure = "Change them, or rename the column and map it under its new name, which brings values into shape"
        raise SettingsError("The table cannot be adopted:\n" + "\n".join(reasons) + f"\n{cure}")


def _conditions(source: Source) -> list[tuple[str, str]]:
    if source.field.name in ("tenant", "user_id"):
        return [_ABSENT, _SCOPE]
    return _IN_PLACE.get(source.field.name, []) if source.in_place else []
