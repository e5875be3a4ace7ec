"""`memplane migrate` with its options for adoptions: output, JSON, exit codes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from memplane.settings import PostgresSettings, Settings
from tests.adoption.conftest import adoption_settings
from tests.adoption.old_application import make_table
from tests.cli.conftest import Command, quiet_process
from tests.http.processes import write_settings

__all__ = ["quiet_process"]


async def execute(settings: PostgresSettings, *, shape: str | None = None, statement: str = "") -> None:
    assert settings.dsn is not None
    connection = await asyncpg.connect(settings.dsn.get_secret_value())
    if shape is not None:
        await make_table(connection, shape, 40)
    if statement:
        await connection.execute(statement)
    await connection.close()


@pytest.fixture
def memplane(empty_postgres_settings: PostgresSettings, tmp_path: Path) -> Command:
    asyncio.run(execute(empty_postgres_settings, shape="renamed"))
    settings = Settings(postgres=empty_postgres_settings, adoption=adoption_settings("renamed", quiet_seconds=30))
    return Command(write_settings(settings, tmp_path / "settings.yaml"))


@pytest.mark.parametrize("options", [("--plan",), ("--adopt", "--finish-adoption"), ("--finish-adoption", "--plan")])
def test_options_that_do_not_fit(memplane: Command, options: tuple[str, ...]) -> None:
    assert memplane("migrate", *options).exit_code == 3


def test_from_the_plan_to_the_end(memplane: Command, empty_postgres_settings: PostgresSettings, tmp_path: Path) -> None:
    refused = memplane("migrate")
    assert refused.exit_code == 4
    assert "memplane migrate --adopt" in refused.stderr
    assert memplane("migrate", "--finish-adoption").exit_code == 4
    plan = memplane.json("migrate", "--adopt", "--plan")
    assert plan["rows"] == 36
    assert any("content is copied from body" in note for note in plan["notes"])
    assert any(one.startswith('ALTER TABLE "memplane".long_term_memory\n') for one in plan["statements"])
    assert any("INDEX CONCURRENTLY" in statement for statement in plan["statements"])
    shown = memplane("migrate", "--adopt", "--plan").stdout
    assert "about 36 rows" in shown
    assert "{schema}" not in shown
    assert memplane("doctor").exit_code == 6, "the plan has changed nothing"
    wrong = adoption_settings("renamed", columns={"content": "text", "user_id": "nobody"})
    other = Command(
        write_settings(Settings(postgres=empty_postgres_settings, adoption=wrong), tmp_path / "wrong.yaml")
    )("migrate", "--adopt")
    assert other.exit_code == 3
    assert "adoption.columns.content" in other.stderr
    assert "adoption.columns.user_id" in other.stderr
    adopted = memplane.json("migrate", "--adopt")
    assert (adopted["stage"], adopted["backfilled"], adopted["capturedAt"]) == ("adopted", 36, None)
    assert "The table is adopted: 36 rows" in memplane("migrate", "--adopt", "--plan").stdout
    assert memplane.json("migrate")["applied"] == []
    touch = "UPDATE memplane.long_term_memory SET body = 'changed' WHERE id = 1"
    asyncio.run(execute(empty_postgres_settings, statement=touch))
    early = memplane("migrate", "--finish-adoption")
    assert early.exit_code == 6
    assert "adoption.quiet_seconds" in early.stderr
    later = "UPDATE memplane.adoption SET captured_at = captured_at - interval '1 hour'"
    asyncio.run(execute(empty_postgres_settings, statement=later))
    assert memplane.json("migrate", "--finish-adoption")["stage"] == "finished"
    assert "memplane alone writes the table" in memplane("migrate", "--finish-adoption").stdout
    assert memplane("doctor").exit_code == 0
    assert memplane("drop", "--yes").exit_code == 0
