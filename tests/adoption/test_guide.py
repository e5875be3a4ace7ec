"""docs/adoption.md, run as it stands: its commands in one shell, in order, beside an old application that writes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from memplane.settings import MilvusSettings, Neo4jSettings, Settings
from tests.adoption.conftest import MakeWorld
from tests.adoption.old_application import Account, running
from tests.adoption.support import check_account, check_rows
from tests.http.world import drop

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "adoption.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)(?: exit=(\d+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
END = "::end of block"
BLOCK_SECONDS = 240


@dataclass(frozen=True)
class Step:
    """A block of commands, the exit code of its last one, and what it must print, `…` standing for anything."""

    commands: str
    code: int
    shown: list[str]


def steps() -> Iterator[Step]:
    blocks = list(BLOCK.finditer(GUIDE))
    for number, block in enumerate(blocks):
        if block[1] == "sh":
            following = blocks[number + 1]
            assert following[1] == "text", f"nothing says what {block[3]!r} must show"
            yield Step(block[3], int(block[2] or 0), following[3].strip().splitlines())


def settings_file() -> str:
    return next(block[3] for block in BLOCK.finditer(GUIDE) if block[1] == "yaml")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Shell:
    """One bash for all blocks, so that variables and jobs live on."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def run(self, commands: str) -> tuple[int, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{commands}\nended=$?; echo; echo '{END}' $ended\n".encode())
        await self.process.stdin.drain()
        lines: list[str] = []
        try:
            async with asyncio.timeout(BLOCK_SECONDS):
                async for line in self.process.stdout:
                    text = line.decode()
                    if text.startswith(END):
                        return int(text.removeprefix(END)), "".join(lines)
                    lines.append(text)
        except TimeoutError:
            pytest.fail(f"it did not end:\n{commands}\n{''.join(lines)}")
        pytest.fail(f"the shell ended in:\n{commands}\n{''.join(lines)}")


@asynccontextmanager
async def shell(folder: Path, environment: dict[str, str]) -> AsyncIterator[Shell]:
    process = await asyncio.create_subprocess_exec(
        "bash", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        cwd=folder, env=environment, limit=2**22, start_new_session=True,
    )  # fmt: skip
    ours = Shell(process)
    try:
        yield ours
    finally:
        # The shell and whatever it has started.
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def shows(output: str, expected: str) -> bool:
    """Whether a line of the output is what the guide says; runs of spaces do not matter."""
    pattern = r".*".join(re.escape(" ".join(part.split())) for part in expected.split("…"))
    return any(re.search(pattern.replace(r".*\ ", ".*"), " ".join(line.split())) for line in output.splitlines())


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_guide_works_as_it_stands(
    old_world: MakeWorld, milvus_settings: MilvusSettings, neo4j_settings: Neo4jSettings, tmp_path: Path
) -> None:
    world = await old_world("renamed", 1000, schema="public")
    (tmp_path / "adopt.yaml").write_text(settings_file())
    places = {
        "MEMPLANE_POSTGRES__DSN": world.dsn,
        "MEMPLANE_MILVUS__URI": str(milvus_settings.uri),
        "MEMPLANE_NEO4J__URI": str(neo4j_settings.uri),
        "MEMPLANE_NEO4J__PASSWORD": neo4j_settings.password.get_secret_value() if neo4j_settings.password else "",
    }
    ports = {"8080": str(free_port()), "9464": str(free_port()), "9465": str(free_port())}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "no_proxy": "127.0.0.1",
        "MEMPLANE_SERVICE__PORT": ports["8080"],
        "MEMPLANE_WORKER__PORT": ports["9464"],
        # What is only a matter of patience.
        "MEMPLANE_ADOPTION__QUIET_SECONDS": "2",
        "MEMPLANE_OUTBOX__POLL_SECONDS": "0.2",
    }
    if milvus_settings.token is not None:
        environment["MEMPLANE_MILVUS__TOKEN"] = milvus_settings.token.get_secret_value()
    account = tmp_path / "account.json"
    stores = Settings(
        postgres=world.settings.model_copy(update={"schema_name": "public"}),
        milvus=milvus_settings,
        neo4j=neo4j_settings,
    )
    try:
        with ExitStack() as old_application:
            old_application.enter_context(running(world.dsn, "renamed", account, pause=0.05, schema="public"))
            async with shell(tmp_path, environment) as bash:
                for step in steps():
                    if "--finish-adoption" in step.commands:
                        old_application.close()
                    code, output = await bash.run(localized(step.commands, places, ports))
                    assert code == step.code, (step.commands, output)
                    for expected in step.shown:
                        assert shows(output, expected), (step.commands, expected, output)
        await check_rows(world.database)
        await check_account(world.sql, world.database, Account.load(account))
    finally:
        await drop(stores)


def localized(commands: str, places: dict[str, str], ports: dict[str, str]) -> str:
    """The commands with this machine's addresses; nothing else is changed."""
    for name, value in places.items():
        commands = re.sub(
            rf"^export {name}=.*$", lambda _, text=f"export {name}='{value}'": text, commands, flags=re.MULTILINE
        )
    for wanted, free in ports.items():
        commands = commands.replace(wanted, free)
    return commands


def test_every_stage_of_the_table_has_its_section() -> None:
    for name, anchor in re.findall(r"\[([^\]]+)\]\(#(\d-[\w-]+)\)", GUIDE):
        number = anchor.split("-")[0]
        assert f"## {number}. {name}\n" in GUIDE
    assert len(list(steps())) == 8
