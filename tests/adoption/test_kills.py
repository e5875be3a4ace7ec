"""An adoption is killed with SIGKILL again and again, beside a writing application, and still ends well."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from pathlib import Path

import pytest

from memplane.adoption.finish import finish
from memplane.schema.migrate import check
from tests.adoption.adopting import start
from tests.adoption.conftest import MakeWorld, OldWorld
from tests.adoption.old_application import Account, running
from tests.adoption.support import check_account, check_rows

STAGES = ("columns and trigger", "backfill", "index", "constraints", "changes", "check")


def text_of(log: Path) -> str:
    return log.read_text()


async def reached(log: Path, stage: str, since: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a stage has begun, or the process has ended."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if any(line.startswith(stage) for line in text_of(log)[since:].splitlines()):
            return
        await asyncio.sleep(0.02)


async def ends_well(world: OldWorld, log: Path, account: Path) -> None:
    assert "Traceback" not in text_of(log)
    assert await check(world.database) > 0
    state = await finish(world.database, world.adoption, targets=())
    assert state is not None
    assert state.stage == "finished"
    assert await world.value("SELECT count(*) FROM pg_index WHERE NOT indisvalid") == 0
    await check_rows(world.database)
    await check_account(world.sql, world.database, Account.load(account))


@pytest.mark.slow
async def test_killed_in_every_stage(old_world: MakeWorld, tmp_path: Path) -> None:
    world = await old_world("renamed", 3000, batch_size=50)
    log, account = tmp_path / "log", tmp_path / "account.json"
    log.touch()
    chance = random.Random(7)
    with running(world.dsn, "renamed", account, pause=0.02):
        for stage in STAGES:
            process = start(world.dsn, world.adoption, log)
            await reached(log, stage, len(log.read_text()), process)
            await asyncio.sleep(chance.uniform(0, 0.1))
            process.kill()
            process.wait()
        assert start(world.dsn, world.adoption, log).wait(120) == 0, log.read_text()[-2000:]
    await ends_well(world, log, account)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(8))
async def test_killed_at_any_moment(old_world: MakeWorld, tmp_path: Path, seed: int) -> None:
    shape = ("seed", "renamed")[seed % 2]
    world = await old_world(shape, 5000, batch_size=50)
    log, account = tmp_path / "log", tmp_path / "account.json"
    chance = random.Random(seed)
    with running(world.dsn, shape, account, seed=seed):
        for _ in range(6):
            process = start(world.dsn, world.adoption, log)
            await asyncio.sleep(chance.uniform(0.5, 4))
            process.kill()
            process.wait()
        assert start(world.dsn, world.adoption, log).wait(240) == 0, log.read_text()[-2000:]
    await ends_well(world, log, account)
