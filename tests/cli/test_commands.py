"""The commands that end by themselves: what they print, what they change, their exit codes."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import SecretStr

from memplane.api.auth.key_file import hash_key, parse_key_file
from memplane.schema.database import Database
from memplane.settings import PostgresSettings, Settings
from tests.cli.conftest import Command
from tests.http.processes import write_settings

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


async def sql(settings: PostgresSettings, statement: str, *arguments: object) -> list[Any]:
    database = Database(settings)
    try:
        async with database.acquire() as connection:
            return list(await connection.fetch(database.sql(statement), *arguments))
    finally:
        await database.close()


INSERT = """
INSERT INTO {schema}.memory_outbox
    (event_id, aggregate_id, user_id, tenant, aggregate_version, event_type, target, payload, status, last_error)
VALUES (gen_random_uuid(), $1, 'u', 't', 1, 'upsert_memory_vector', $2, '{}', $3, 'it was refused')
RETURNING id
"""


def event(settings: PostgresSettings, memory_id: int, target: str = "milvus", status: str = "dead") -> int:
    return int(run(sql(settings, INSERT, memory_id, target, status))[0]["id"])


def test_help_lists_the_commands(bare: Command) -> None:
    result = bare("--help")
    assert result.exit_code == 0
    for name in ("dev", "serve", "worker", "migrate", "outbox", "reconcile", "doctor", "keys"):
        assert name in result.stdout
        assert bare(name, "--help").exit_code == 0
    assert bare("--version").stdout.strip().count(".") == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["no-such-command"], 2),
        (["worker", "redis"], 2),
        (["worker", "ltm_cache"], 2),
        (["outbox", "show"], 2),
        (["outbox", "list", "--limit", "0"], 2),
        (["reconcile"], 2),
        (["migrate"], 3),
        (["serve"], 3),
        (["worker", "milvus"], 3),
        (["--config", "/no/such/file.yaml", "migrate"], 3),
        (["keys", "list"], 3),
        (["keys", "new"], 3),
    ],
)
def test_exit_codes_of_what_cannot_work(bare: Command, arguments: list[str], code: int) -> None:
    result = bare(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("postgress: {}", "postgress: unknown field"),
        ("postgres: {pool_maxx: 1}", "postgres.pool_maxx: unknown field; known fields are connect_timeout"),
        ("postgres: {pool_max: many}", "postgres.pool_max: Input should be a valid integer"),
        ("auth: {mode: open}", "auth.mode: Input should be 'apiKeys', 'jwt' or 'none'"),
        ("auth: {jwt: {algorithms: [HS256]}}", "auth.jwt.algorithms.0"),
        ("- a\n- b", "must hold a mapping"),
        ("a: [", "not valid YAML"),
        ("postgres: {dsn: 5}", "postgres.dsn"),
    ],
)
def test_wrong_settings_files_name_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    result = Command(path)("migrate")
    assert result.exit_code == 3
    assert message in result.stderr


def test_wrong_environment_names_the_variable(bare: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPLANE_POSTGRE__DSN", "postgresql://user:secret@host/db")
    result = bare("migrate")
    assert result.exit_code == 3
    assert "MEMPLANE_POSTGRE__DSN" in result.stderr
    monkeypatch.delenv("MEMPLANE_POSTGRE__DSN")
    monkeypatch.setenv("MEMPLANE_POSTGRES__DSN", "mysql://user:secret@host/db")
    result = bare("--json", "migrate")
    assert result.exit_code == 3
    assert "secret" not in result.output
    assert "postgres.dsn" in json.loads(result.stderr)["error"]


def test_a_server_that_is_away_is_5(tmp_path: Path, postgres_settings: PostgresSettings) -> None:
    away = Settings(postgres=PostgresSettings(dsn=SecretStr("postgresql://u:hidden@127.0.0.1:1/db"), connect_timeout=2))
    result = Command(write_settings(away, tmp_path / "s.yaml"))("migrate")
    assert result.exit_code == 5
    assert "postgresql is unavailable" in result.stderr
    assert "hidden" not in result.output


def test_migrate_and_repeat(tmp_path: Path, empty_postgres_settings: PostgresSettings) -> None:
    command = Command(write_settings(Settings(postgres=empty_postgres_settings), tmp_path / "s.yaml"))
    refused = command("doctor")
    assert refused.exit_code == 6
    assert "memplane migrate" in refused.stdout
    first = command.json("migrate")
    assert first["applied"]
    assert first["schemaVersion"] == len(first["applied"])
    again = command.json("migrate")
    assert again == {**first, "applied": []}
    assert f"level {first['schemaVersion']}" in command("migrate").stdout


def test_outbox_list_show_replay_discard(memplane: Command, postgres_settings: PostgresSettings) -> None:
    assert memplane("outbox", "list").stdout.strip() == "There are no such events."
    one, two = event(postgres_settings, 1), event(postgres_settings, 2)
    other = event(postgres_settings, 3, target="neo4j")
    waiting = event(postgres_settings, 4, status="pending")
    assert [shown["id"] for shown in memplane.json("outbox", "list")] == [waiting, other, two, one]
    listed = memplane.json("outbox", "list", "--status", "dead", "--target", "milvus")
    assert [shown["id"] for shown in listed] == [two, one]
    assert [shown["id"] for shown in memplane.json("outbox", "list", "--before", str(two))] == [one]
    assert [shown["id"] for shown in memplane.json("outbox", "list", "--memory", "4")] == [waiting]
    table = memplane("outbox", "list").stdout
    assert "it was refused" in table
    assert "upsert_memory_vector" in table
    assert memplane.json("outbox", "show", str(one))["lastError"] == "it was refused"
    assert "last_error" in memplane("outbox", "show", str(one)).stdout
    assert memplane("outbox", "show", "999999").exit_code == 7
    assert memplane("outbox", "replay").exit_code == 2
    assert memplane("outbox", "replay", str(one), "--all-dead").exit_code == 2
    assert memplane.json("outbox", "replay", str(one)) == {"replayed": {str(one): "pending"}}
    assert memplane("outbox", "replay", str(waiting)).exit_code == 7
    assert memplane.json("outbox", "discard", str(two)) == {"discarded": [two]}
    assert memplane.json("outbox", "replay", "--all-dead", "--target", "neo4j") == {"replayed": {str(other): "pending"}}
    assert memplane.json("outbox", "discard", "--all-dead") == {"discarded": []}
    states = {row["id"]: row["status"] for row in run(sql(postgres_settings, "SELECT * FROM {schema}.memory_outbox"))}
    assert states == {one: "pending", two: "processed", other: "pending", waiting: "pending"}


def test_doctor(memplane: Command, postgres_settings: PostgresSettings) -> None:
    findings = {one["check"]: one for one in memplane.json("doctor")}
    assert set(findings) == {"postgresql", "schema", "identity", "embedding", "events"}
    assert all(one["ok"] for one in findings.values())
    event(postgres_settings, 1)
    findings = {one["check"]: one for one in memplane.json("doctor", code=6)}
    assert "outbox list --status dead" in findings["milvus events"]["advice"]
    run(sql(postgres_settings, "UPDATE {schema}.backend_identity SET database_oid = 1"))
    refused = {one["check"]: one for one in memplane.json("doctor", code=6)}
    assert not refused["identity"]["ok"]
    before = run(sql(postgres_settings, "SELECT backend_id FROM {schema}.backend_identity"))[0][0]
    run(sql(postgres_settings, "DELETE FROM {schema}.memory_outbox"))
    assert memplane("doctor", "--new-identity").exit_code == 0
    after = run(sql(postgres_settings, "SELECT backend_id FROM {schema}.backend_identity"))[0][0]
    assert after != before


def test_keys(bare: Command, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "keys.yaml"
    made = bare.json("keys", "new", "--file", str(path), "--user", "ann", "--user", "bob", "--name", "my agent")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    entry = parse_key_file(path.read_text()).keys[0]
    assert entry.sha256 == hash_key(made["key"])
    assert (entry.tenant, entry.users, [str(role) for role in entry.roles]) == (
        "default",
        ["ann", "bob"],
        ["reader", "writer"],
    )
    assert made["key"] not in path.read_text()
    plain = bare(
        "keys", "new", "--file", str(path), "--user", "*", "--role", "admin", "--tenant", "acme", "--days", "3"
    )
    assert plain.exit_code == 0
    assert plain.stdout.strip().startswith("mp_")
    listed = bare.json("keys", "list", "--file", str(path))
    assert [one["users"] for one in listed] == [["ann", "bob"], "*"]
    assert "sha256" not in json.dumps(listed)
    assert listed[1]["expires_at"]
    assert "my agent" in bare("keys", "list", "--file", str(path)).stdout
    path.write_text("keys: 5")
    assert bare("keys", "list", "--file", str(path)).exit_code == 3
    assert bare("keys", "new", "--file", str(path), "--user", "ann").exit_code == 3
    assert path.read_text() == "keys: 5", "a broken file is left as it is"
