"""Consolidation and purge as people reach them: the admin API, the commands, the service's own schedule, metrics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from memplane.api.compose import ServiceProcess
from memplane.errors import SettingsError
from memplane.outbox.events import Target
from memplane.schema.database import Database
from memplane.settings import ConsolidationSettings, MilvusSettings, Neo4jSettings, PurgeSettings, Settings
from tests.cli.conftest import Command, quiet_process
from tests.consolidation.world import User
from tests.http.processes import write_settings
from tests.http.serving import client
from tests.http.world import Keys, eventually, keys, node, service
from tests.http.world import settings as whole_settings

__all__ = ["keys", "quiet_process", "whole_settings"]


@pytest.fixture
def settings(whole_settings: Settings) -> Settings:
    """Without projections: nothing here speaks to them."""
    return whole_settings.model_copy(
        update={
            "milvus": MilvusSettings(),
            "neo4j": Neo4jSettings(),
            "consolidation": ConsolidationSettings(window=50),
            "purge": PurgeSettings(retention_seconds=5000, full_interval_seconds=60),
        }
    )


async def duplicates(url: str, key: str) -> list[str]:
    async with client(url, key, "ann") as http:
        memories = [{"content": "secret text"}, {"content": "secret text", "metadata": {"note": "private"}}]
        return [item["id"] for item in await node(http, "WRITE", {"memories": memories})]


async def test_plan_apply_and_chain_over_http(settings: Settings, keys: Keys) -> None:
    async with service(settings) as (url, _):
        first, second = await duplicates(url, keys["any"])
        async with client(url, keys["admin"]) as admin:
            nothing = (await admin.post("/v1/admin/consolidation/plan", json={"user": "ann"})).json()
            assert (nothing["steps"], nothing["lookedAt"]) == ([], 2), "no rule is on by default"
            body = {"user": "ann", "rules": ["exact"]}
            answer = await admin.post("/v1/admin/consolidation/plan", json=body)
            assert "secret" not in answer.text
            assert "private" not in answer.text
            (step,) = answer.json()["steps"]
            assert [(one["memoryId"], one["expectedVersion"], one["changes"]) for one in step["updates"]] == [
                (first, 1, ["note"])
            ]
            assert [(one["memoryId"], one["supersededBy"], one["rule"]) for one in step["deletes"]] == [
                (second, first, "exact")
            ]
            done = (await admin.post("/v1/admin/consolidation/apply", json=body)).json()
            assert (done["superseded"], done["updated"], done["byRule"]) == (1, 1, {"exact": 1})
            chain = (await admin.get(f"/v1/admin/memories/{second}/supersedes")).json()
            assert [(one["survivorId"], one["survivorVersion"]) for one in chain["supersededBy"]] == [(first, 2)]
            down = (await admin.get(f"/v1/admin/memories/{first}/supersedes")).json()
            assert [one["supersededId"] for one in down["supersedes"]] == [second]
            state = (await admin.get(f"/v1/admin/memories/{second}")).json()
            assert state["memory"]["superseded_by"] == first
        async with client(url, keys["any"], "ann") as http:
            # This instance's cache has taken the merge, too.
            found = await node(http, "GET", {"ids": [first, second]})
        assert [item["metadata"] for item in found] == [{"note": "private"}]
        async with client(url, keys["other"]) as foreign:
            hidden = (await foreign.get(f"/v1/admin/memories/{second}/supersedes")).json()
            assert (hidden["supersededBy"], hidden["supersedes"]) == ([], [])
            refused = await foreign.post("/v1/admin/consolidation/apply", json={"user": "ann", "tenant": "acme"})
            assert refused.status_code == 403
        async with client(url, keys["platform"]) as platform:
            unnamed = await platform.post("/v1/admin/consolidation/plan", json={"user": "ann"})
            assert unnamed.status_code == 400
            named = await platform.post("/v1/admin/consolidation/plan", json={"user": "ann", "tenant": "acme"})
            assert named.json()["lookedAt"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {"user": ""},
        {"user": "a\0"},
        {"user": "\ud800"},
        {"user": "ann", "tenant": "\0"},
        {"user": "ann", "after": 2**63},
        {"user": "ann", "after": -(2**63) - 1},
        {"user": "u" * 10_000},
        {"user": "ann", "rules": ["merge"]},
    ],
)
async def test_bad_input_is_400(settings: Settings, keys: Keys, body: dict[str, Any]) -> None:
    async with service(settings) as (url, _), client(url, keys["platform"]) as http:
        for path in ("plan", "apply"):
            answer = await http.post(
                f"/v1/admin/consolidation/{path}",
                content=json.dumps({"tenant": "acme", **body}),
                headers={"Content-Type": "application/json"},
            )
            assert answer.status_code == 400, answer.text


async def test_lowest_cursor_is_fine(settings: Settings, keys: Keys) -> None:
    async with service(settings) as (url, _), client(url, keys["admin"]) as http:
        for after in (-(2**63), 2**63 - 1, -258):
            answer = await http.post("/v1/admin/consolidation/plan", json={"user": "ann", "after": after})
            assert answer.status_code == 200, answer.text


async def test_windows_are_asked_for_one_by_one(settings: Settings, keys: Keys) -> None:
    async with service(settings) as (url, _):
        async with client(url, keys["any"], "ann") as http:
            await node(http, "WRITE", {"memories": [{"content": f"text {number}"} for number in range(120)]})
        async with client(url, keys["admin"]) as admin:
            for path in ("plan", "apply"):
                body: dict[str, Any] = {"user": "ann", "rules": ["exact"]}
                seen = []
                while True:
                    page = (await admin.post(f"/v1/admin/consolidation/{path}", json=body)).json()
                    seen.append(page["lookedAt"])
                    if page["nextAfter"] is None:
                        break
                    body["after"] = page["nextAfter"]
                assert seen == [50, 50, 20]


ROUTES = [
    ("POST", "/v1/admin/consolidation/plan", {"admin", "other"}),
    ("POST", "/v1/admin/consolidation/apply", {"admin", "other"}),
    ("GET", "/v1/admin/memories/1/supersedes", {"admin", "other", "platform"}),
    ("GET", "/v1/admin/purge", {"platform"}),
    ("POST", "/v1/admin/purge", {"platform"}),
]


async def test_who_may_ask(settings: Settings, keys: Keys) -> None:
    async with service(settings) as (url, _):
        for method, path, allowed in ROUTES:
            body = {"user": "ann"} if method == "POST" else None
            async with client(url) as http:
                assert (await http.request(method, path, json=body)).status_code == 401
            for name, key in keys.by_name.items():
                async with client(url, key, "ann") as http:
                    status = (await http.request(method, path, json=body)).status_code
                expected = {200} if name in allowed else {400, 403}
                assert status in expected, f"{name} {method} {path}: {status}"


async def test_purge_over_http_and_in_the_figures(settings: Settings, keys: Keys, database: Database) -> None:
    async with service(settings) as (url, _):
        ids = await duplicates(url, keys["any"])
        async with client(url, keys["any"], "ann") as http:
            await node(http, "DELETE", {"ids": ids})
        user = User(database)
        await eventually(lambda: nothing_pending(user))
        await user.rows("UPDATE {schema}.long_term_memory SET deleted_at = now() - interval '2 hours'")
        async with client(url, keys["platform"]) as platform:
            preview = (await platform.get("/v1/admin/purge")).json()
            assert (preview["dryRun"], preview["tombstones"], preview["removed"]) == (True, {"ready": 2}, {})
            done = (await platform.post("/v1/admin/purge")).json()
            assert (done["dryRun"], done["cancelled"], done["removed"]["tombstones"]) == (False, False, 2)
            metrics = (await platform.get("/metrics")).text
    assert "memory_tombstones 0.0" in metrics
    assert 'memory_purged_total{kind="tombstones"} 2.0' in metrics
    assert 'memory_consolidated_total{rule="exact"} 0.0' in metrics


async def nothing_pending(user: User) -> bool:
    return not await user.rows("SELECT id FROM {schema}.memory_outbox WHERE status <> 'processed'")


async def test_the_service_does_both_by_itself_when_it_is_told_to(
    settings: Settings, keys: Keys, database: Database
) -> None:
    told = settings.model_copy(
        update={
            "consolidation": ConsolidationSettings(rules=("exact",), interval_seconds=0.3),
            "purge": settings.purge.model_copy(update={"interval_seconds": 0.3}),
        }
    )
    user = User(database)
    async with service(told) as (url, _):
        first, second = await duplicates(url, keys["any"])

        async def merged() -> bool:
            return set(await user.items()) == {int(first)}

        async def purged() -> bool:
            await user.rows("UPDATE {schema}.long_term_memory SET deleted_at = deleted_at - interval '2 hours'")
            return not await user.rows("SELECT id FROM {schema}.long_term_memory WHERE id = $1", int(second))

        await eventually(merged)
        await eventually(purged)


async def test_neither_happens_by_itself(settings: Settings, keys: Keys, database: Database) -> None:
    user = User(database)
    async with service(settings) as (url, _):
        await duplicates(url, keys["any"])
        await asyncio.sleep(1)
        assert len(await user.items()) == 2


def test_a_policy_that_does_not_exist_is_named_at_the_start(settings: Settings) -> None:
    wrong = settings.model_copy(update={"consolidation": ConsolidationSettings(policy="no-such")})
    with pytest.raises(SettingsError, match=r"unknown merge policy plugin 'no-such'; known: keep"):
        ServiceProcess(wrong)


# Commands ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def memplane(settings: Settings, tmp_path: Path) -> Command:
    plain = settings.model_copy(update={"auth": Settings().auth})
    return Command(write_settings(plain, tmp_path / "settings.yaml"))


def work(settings: Settings, task: Any) -> Any:
    """Run a coroutine function of a user on a loop of its own: commands have one, too."""

    async def run() -> Any:
        database = Database(settings.postgres)
        try:
            return await task(User(database, targets=[Target.LTM_CACHE]))
        finally:
            await database.close()

    return asyncio.run(run())


def test_consolidate_from_the_command_line(settings: Settings, memplane: Command) -> None:
    first, second = work(settings, lambda user: user.write("same", "same"))
    nothing = memplane("consolidate")
    assert nothing.exit_code == 0
    assert "no rule is named" in nothing.stderr
    shown = memplane("consolidate", "--rule", "exact")
    assert f"a duplicate of memory {first}" in shown.stdout
    assert "Nothing was changed" in shown.stdout
    plans = memplane.json("consolidate", "--plan", "--rule", "exact", "--tenant", "acme")["plans"]
    assert [one["memoryId"] for one in plans[0]["steps"][0]["deletes"]] == [str(second)]
    result = memplane("consolidate", "--apply", "--rule", "exact", "--tenant", "acme", "--user", "ann", "--json")
    assert json.loads(result.stdout)["superseded"] == 1
    assert set(work(settings, lambda user: user.items())) == {first}
    assert "1 users, 1 memories: 0 merged" in memplane("consolidate", "--apply", "--rule", "near").stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["consolidate", "--plan", "--apply"], 3),
        (["consolidate", "--user", "ann"], 3),
        (["consolidate", "--rule", "magic"], 2),
        (["purge", "--now"], 2),
    ],
)
def test_wrong_command_lines(memplane: Command, arguments: list[str], code: int) -> None:
    result = memplane(*arguments)
    assert result.exit_code == code
    assert "Traceback" not in result.output


def test_purge_from_the_command_line(settings: Settings, memplane: Command) -> None:
    async def prepare(user: User) -> None:
        (memory,) = await user.write("a")
        await user.delete(memory)

    work(settings, prepare)
    assert "events of theirs wait" in memplane("purge", "--dry-run").stdout.replace("\n", " ") or (
        memplane.json("purge", "--dry-run")["tombstones"] == {"retained": 1}
    )

    async def finish(user: User) -> None:
        await user.rows("UPDATE {schema}.memory_outbox SET status = 'processed', processed_at = now()")
        await user.rows("UPDATE {schema}.long_term_memory SET deleted_at = now() - interval '2 hours'")

    work(settings, finish)
    assert memplane.json("purge")["removed"] == {"tombstones": 1}
    assert "nothing to remove" in memplane("purge").stdout
    assert json.loads(memplane("purge", "--dry-run", "--json").stdout)["dryRun"] is True


def test_a_retention_that_is_too_short_is_a_wrong_setting(memplane: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPLANE_PURGE__RETENTION_SECONDS", "60")
    result = memplane("purge")
    assert result.exit_code == 3
    assert "purge.retention_seconds must exceed" in result.stderr


def test_another_store_has_nothing_to_purge(memplane: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPLANE_STORE__PLUGIN", "inmemory")
    for command in ("purge", "consolidate"):
        result = memplane(command)
        assert result.exit_code == 3, result.output
        assert "PostgreSQL" in result.stderr
