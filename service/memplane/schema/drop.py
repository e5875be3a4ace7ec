"""Removes what the migrations made, and nothing else: a schema may also hold tables of the application's own."""

from __future__ import annotations

import re

import asyncpg

from memplane.schema.database import Database
from memplane.schema.migrate import BOOKKEEPING, migrations

_MADE = re.compile(r"^CREATE (?:OR REPLACE )?(TABLE|FUNCTION)(?: IF NOT EXISTS)? \{schema\}\.(\w+)", re.MULTILINE)

ADOPTION_FUNCTIONS = ("adoption_row", "adoption_delete", "adoption_truncate")
"""Made by an adoption that is not finished (`memplane.adoption.trigger`); their triggers go with the table."""


def made_by_migrations() -> list[tuple[str, str]]:
    """(TABLE or FUNCTION, name) of every object that the migrations create, newest first, their bookkeeping last."""
    texts = [BOOKKEEPING, *(migration.text for migration in migrations())]
    found = [(match[1], match[2]) for text in texts for match in _MADE.finditer(text)]
    return list(reversed(dict.fromkeys(found)))


async def drop_schema(database: Database) -> bool:
    """Drop all that is ours in one transaction, then the schema if nothing else is in it. Returns whether it went."""
    async with database.transaction() as connection:
        for kind, name in made_by_migrations():
            await connection.execute(database.sql(f"DROP {kind} IF EXISTS {{schema}}.{name}"))
        for name in ADOPTION_FUNCTIONS:
            await connection.execute(database.sql(f"DROP FUNCTION IF EXISTS {{schema}}.{name}()"))
        try:
            async with connection.transaction():
                await connection.execute(database.sql("DROP SCHEMA IF EXISTS {schema} RESTRICT"))
        except asyncpg.DependentObjectsStillExistError:
            return False
    return True
