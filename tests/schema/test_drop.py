"""Dropping takes what the migrations made and leaves everything else."""

from __future__ import annotations

from memplane.schema.database import Database
from memplane.schema.drop import drop_schema, made_by_migrations
from memplane.schema.migrate import migrate

_OBJECTS = """
SELECT relname::text AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND relkind = 'r'
UNION ALL
SELECT proname::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = $1
"""


async def objects(database: Database) -> set[str]:
    async with database.acquire() as connection:
        return {row["name"] for row in await connection.fetch(_OBJECTS, database.settings.schema_name)}


async def test_every_object_of_the_migrations_is_known(database: Database) -> None:
    assert {name for _, name in made_by_migrations()} == await objects(database)


async def test_the_schema_goes_and_can_be_made_again(database: Database) -> None:
    assert await drop_schema(database) is True
    assert await objects(database) == set()
    assert await drop_schema(database) is True, "safe to repeat"
    assert await migrate(database) != []


async def test_other_tables_of_the_schema_stay(database: Database) -> None:
    async with database.acquire() as connection:
        await connection.execute(database.sql("CREATE TABLE {schema}.theirs (id int)"))
    assert await drop_schema(database) is False
    assert await objects(database) == {"theirs"}
