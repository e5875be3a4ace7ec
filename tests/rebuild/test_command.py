"""`memplane rebuild` beside a running service: what it prints, what the API and the metrics say."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from memplane.outbox.events import Target
from memplane.schema.database import Database
from memplane.settings import Settings
from tests.http.processes import write_settings
from tests.http.world import Keys, client, keys, node, service, settings
from tests.outbox.world import all_done, execute, until

__all__ = ["keys", "settings"]

pytestmark = pytest.mark.timeout(300)

EVERYTHING = ["milvus", "neo4j", "ltm_cache"]


async def memplane(config: Path, *arguments: str, code: int = 0) -> Any:
    """The document that a command prints; it must end with `code`."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "memplane",
        "--config",
        str(config),
        "--json",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(child.communicate(), 120)
    assert child.returncode == code, (child.returncode, errors.decode()[-2000:])
    return json.loads(out) if out else errors.decode()


async def test_a_backend_is_rebuilt_by_commands(
    settings: Settings, keys: Keys, database: Database, tmp_path: Path
) -> None:
    config = write_settings(settings, tmp_path / "settings.yaml")
    async with (
        service(settings, workers=(Target.MILVUS, Target.NEO4J)) as (url, _),
        client(url, keys["ann"]) as http,
        client(url, keys["platform"]) as platform,
    ):
        memories: Any = [{"content": f"a parrot that says {number}"} for number in range(10)]
        await node(http, "WRITE", {"memories": memories})
        await until(lambda: all_done(database), 60)
        first = (await generations(platform))["generations"]
        assert {(one["target"], one["state"]) for one in first} == {("milvus", "active"), ("neo4j", "active")}

        reports = await asyncio.gather(*(memplane(config, "rebuild", target) for target in EVERYTHING))
        assert {report["target"]: (report["state"], report["copied"]) for report in reports} == {
            "milvus": ("completed", 10),
            "neo4j": ("completed", 10),
            "ltm_cache": ("completed", 0),
        }

        after = await generations(platform)
        states = {one["id"]: one["state"] for one in after["generations"] if one["target"] == "milvus"}
        assert sorted(states.values()) == ["active", "retired"]
        assert {(one["target"], one["state"], one["stage"], one["running"]) for one in after["rebuilds"]} == {
            (target, "completed", "done", False) for target in EVERYTHING
        }
        hits = await node(http, "SEARCH", {"query": "a parrot that says 3", "strategy": "vector", "limit": 1})
        assert hits[0]["memory"]["content"] == "a parrot that says 3"

        [old] = [one["collection"] for one in after["generations"] if one["state"] == "retired"]
        ended, refused, finished = await asyncio.gather(
            memplane(config, "rebuild", "milvus", "--abort", code=7),
            memplane(config, "rebuild", "milvus", "--model", "another", code=3),
            memplane(config, "rebuild", "milvus", "--finish"),
        )
        assert ended == {"aborted": None}
        assert "no setting names this model" in refused
        assert finished == {"dropped": [old]}

        # One that nobody works on: the metrics say so, and it can be ended.
        await execute(
            database,
            "INSERT INTO {schema}.rebuild_run (target, state, stage, position, done, total)"
            " VALUES ('neo4j', 'unfinished', 'sweep', 7, 7, 10)",
        )
        metrics = await fresh_metrics(url)
        assert 'memory_rebuild_running{stage="sweep",target="neo4j"} 0.0' in metrics
        assert 'memory_rebuild_done{stage="sweep",target="neo4j"} 7.0' in metrics
        assert 'memory_projection_generations{state="active",target="milvus"} 1.0' in metrics
        assert (await memplane(config, "rebuild", "neo4j", "--abort"))["aborted"]["switched"] is False


async def generations(http: httpx.AsyncClient) -> Any:
    answer = await http.get("/v1/admin/generations")
    assert answer.status_code == 200
    return answer.json()


async def fresh_metrics(url: str) -> str:
    """The exposition with this rebuild in it; its figures are up to ten seconds old."""
    async with httpx.AsyncClient() as http, asyncio.timeout(20):
        while True:
            text = (await http.get(f"{url}/metrics")).text
            if "memory_rebuild_running{" in text:
                return text
            await asyncio.sleep(1)
