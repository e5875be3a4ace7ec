"""How far an adoption is: the one row of `adoption`, so that any process can go on where another was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal

import asyncpg

from memplane.adoption.table import Column, OldTable
from memplane.errors import SettingsError
from memplane.schema.database import Connection, Database
from memplane.settings import AdoptionSettings

Stage = Literal["backfill", "index", "adopted", "finished"]
"""What is to be done next; `adopted`: memplane serves, the trigger watches the old application."""

SHAPING: Final = ("columns", "tenant", "time_zone", "importance_scale", "tags_separator")
"""Settings that must stay as they are once the trigger is made."""

_READ: Final = """
SELECT stage, document, position, done, total, started_at, adopted_at, finished_at, captured_at,
       extract(epoch FROM clock_timestamp() - captured_at)::float8 AS quiet_seconds
FROM {schema}.adoption
"""
_INSERT: Final = "INSERT INTO {schema}.adoption (stage, document, total) VALUES ('backfill', $1::jsonb, $2)"
_POSITION: Final = "UPDATE {schema}.adoption SET position = greatest(position, $1), done = done + $2"
_STAGE: Final = """
UPDATE {schema}.adoption SET stage = $1,
    adopted_at = CASE WHEN $1 = 'adopted' THEN now() ELSE adopted_at END,
    finished_at = CASE WHEN $1 = 'finished' THEN now() END
"""


@dataclass(frozen=True, slots=True)
class State:
    """`quiet_seconds`: how long no change of the old application was seen; None when none ever was."""

    stage: Stage
    table: OldTable
    settings: Mapping[str, Any]
    level: int
    position: int | None
    done: int
    total: int
    started_at: datetime
    adopted_at: datetime | None
    finished_at: datetime | None
    captured_at: datetime | None
    quiet_seconds: float | None


async def read_state(connection: Connection, database: Database) -> State | None:
    """The adoption of this schema; None when its table was made by memplane, or is not being adopted yet."""
    try:
        row = await connection.fetchrow(database.sql(_READ))
    except asyncpg.UndefinedTableError:
        return None
    if row is None:
        return None
    facts = dict(row)
    document = json.loads(facts.pop("document"))
    return State(table=_table(document["table"]), settings=document["settings"], level=document["level"], **facts)


async def start_state(
    connection: Connection, database: Database, table: OldTable, settings: AdoptionSettings, level: int
) -> None:
    """Record the beginning, in the transaction that shapes the table."""
    document = {"table": asdict(table), "settings": shaping(settings), "level": level}
    await connection.execute(database.sql(_INSERT), json.dumps(document, default=sorted), table.rows)


async def save_position(connection: Connection, database: Database, position: int, done: int) -> None:
    """Record a batch of the backfill, in its transaction."""
    await connection.execute(database.sql(_POSITION), position, done)


async def save_stage(connection: Connection, database: Database, stage: Stage) -> None:
    await connection.execute(database.sql(_STAGE), stage)


def shaping(settings: AdoptionSettings) -> dict[str, Any]:
    """The settings that decide how columns are read."""
    return {name: value for name, value in settings.model_dump(mode="json").items() if name in SHAPING}


def check_unchanged(state: State, settings: AdoptionSettings) -> None:
    """Raise `SettingsError` naming the settings that differ from those that the adoption began with."""
    wanted = shaping(settings)
    changed = [
        f"adoption.columns.{field}"
        for field, column in state.settings["columns"].items()
        if wanted["columns"].get(field) != column
    ]
    changed += [f"adoption.{name}" for name in SHAPING[1:] if wanted[name] != state.settings[name]]
    if changed:
        raise SettingsError(f"the adoption has begun with other values of {', '.join(changed)}: restore them")


def _table(document: Mapping[str, Any]) -> OldTable:
    facts = dict(document)
    facts["columns"] = {name: Column(**column) for name, column in facts["columns"].items()}
    facts["primary_key"] = tuple(facts["primary_key"])
    facts["unique"] = [(name, frozenset(columns)) for name, columns in facts["unique"]]
    facts["names"] = frozenset(facts["names"])
    return OldTable(**facts)
