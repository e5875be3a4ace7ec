"""A peer's process as the benchmarks see it, and the environment that it runs in."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memplane.schema.database import Database

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-bench"
LOCK = ROOT / "requirements-bench.lock"
INSTALL_SECONDS = 900
LINE_BYTES = 64 * 2**20


class Missing(Exception):  # noqa: N818 - what became of a row
    """The peers' environment cannot be had here, so there is nothing to compare with."""


def python() -> Path:
    """The interpreter of the peers' environment, which is made when it is not there or the lock has changed.

    Raises `Missing` when it cannot be installed.
    """
    interpreter, ready = FOLDER / "bin" / "python", FOLDER / ".ready"
    if ready.exists() and ready.read_bytes() == LOCK.read_bytes():
        return interpreter
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    for command in ([sys.executable, "-m", "venv", str(FOLDER)], [*pip, "--no-deps", "-r", str(LOCK)]):
        try:
            subprocess.run(command, check=True, timeout=INSTALL_SECONDS, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(f"{LOCK.name} cannot be installed ({type(error).__name__})") from None
    ready.write_bytes(LOCK.read_bytes())
    return interpreter


async def has_pgvector(database: Database) -> bool:
    """Whether this PostgreSQL has the extension that the peers keep vectors in."""
    async with database.acquire() as connection:
        return bool(await connection.fetchval("SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"))


class Peer:
    """One running peer. Its calls are timed in its own process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def call(self, name: str, arguments: Sequence[Sequence[object]]) -> tuple[list[float], list[Any]]:
        """The seconds and the answer of each call, made one after another."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"call": name, "arguments": arguments}).encode() + b"\n")
        answer = await self.answer()
        return answer["seconds"], answer["answers"]

    async def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.startswith(b"{"):
                document: dict[str, Any] = json.loads(line)
                return document
        raise RuntimeError(f"the peer ended with {await self._process.wait()}")


@asynccontextmanager
async def peer(
    module: str, texts: Sequence[str], vectors: npt.NDArray[np.float32], *arguments: str
) -> AsyncIterator[Peer]:
    """Start `bench.peers.MODULE` with these inputs; it ends with the context. Raises `Missing`."""
    interpreter = await asyncio.to_thread(python)
    with tempfile.TemporaryDirectory(prefix="memplane-bench-") as folder:
        (Path(folder) / "texts.json").write_text(json.dumps(list(texts)), encoding="utf-8")
        np.save(Path(folder) / "vectors.npy", vectors)
        process = await asyncio.create_subprocess_exec(
            str(interpreter), "-m", f"bench.peers.{module}", folder, *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            limit=LINE_BYTES, cwd=ROOT, env={**os.environ, "HOME": folder, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        made = Peer(process)
        try:
            await made.answer()
            yield made
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
                await process.wait()
