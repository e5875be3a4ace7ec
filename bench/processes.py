"""The product's own processes, started as a user would: `memplane serve`, `memplane worker TARGET`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from tests.stack.process import free_port

from bench.frame import TENANT, Bench
from bench.wire import Client, post
from memplane.api.auth.identity import Role
from memplane.api.auth.key_file import KeyFile, new_key, render_key_file
from memplane.schema.database import Database

START_SECONDS = 60
END_SECONDS = 40


class Deployment:
    """Settings, an API key and the running processes of one backend."""

    def __init__(self, folder: Path, environment: Mapping[str, str], key: str, keys_file: Path) -> None:
        self.folder = folder
        self.environment = dict(environment)
        self.key = key
        self.keys_file = keys_file
        self.port = free_port()
        self._running: list[asyncio.subprocess.Process] = []

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", "X-Memory-User": "reader"}

    async def start(self, *command: str) -> None:
        """Start `memplane COMMAND` and keep its output in the folder."""
        await self.start_python("-c", "from memplane.cli import main; main()", *command)

    async def start_python(self, *arguments: str) -> None:
        log = self.folder / f"{len(self._running)}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        self._running.append(process)

    async def serving(self) -> None:
        """Wait until the service answers node calls."""
        await self._wait(self.port, post("/v1/nodes/MEMORY.GET", {"ids": ["1"]}, self.headers))

    async def ready(self, port: int, path: str) -> None:
        """Wait until a GET of this path is answered with 200."""
        await self._wait(port, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    async def _wait(self, port: int, request: bytes) -> None:
        async with asyncio.timeout(START_SECONDS):
            while True:
                for number, process in enumerate(self._running):
                    if process.returncode is not None:
                        text = (self.folder / f"{number}.log").read_text(encoding="utf-8", errors="replace")
                        raise RuntimeError(f"a process ended with {process.returncode}:\n{text[-4000:]}")
                with contextlib.suppress(OSError, EOFError):
                    client = await Client.connect(port)
                    status, _ = await client.send(request)
                    client.close()
                    if status == 200:
                        return
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        for process in reversed(self._running):
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._running:
            try:
                await asyncio.wait_for(process.wait(), END_SECONDS)
            except TimeoutError:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


@contextlib.asynccontextmanager
async def deployment(bench: Bench, database: Database, *, projections: bool) -> AsyncIterator[Deployment]:
    """Settings for the product's processes on this database; what was started ends with the context."""
    with tempfile.TemporaryDirectory(prefix="memplane-bench-") as folder:
        key, entry = new_key(tenant=TENANT, users="*", roles=[Role.READER, Role.WRITER, Role.ADMIN])
        keys_file = Path(folder) / "keys.yaml"
        keys_file.write_text(render_key_file(KeyFile(keys=[entry])), encoding="utf-8")
        assert database.settings.dsn is not None
        environment = {
            "MEMPLANE_POSTGRES__DSN": database.settings.dsn.get_secret_value(),
            "MEMPLANE_AUTH__API_KEYS_FILE": str(keys_file),
            "MEMPLANE_LOG__LEVEL": "WARNING",
        }
        if projections:
            milvus, neo4j = bench.stack.milvus_settings(), bench.stack.neo4j_settings()
            assert milvus.token is not None
            assert neo4j.password is not None
            environment |= {
                "MEMPLANE_MILVUS__URI": milvus.uri or "",
                "MEMPLANE_MILVUS__TOKEN": milvus.token.get_secret_value(),
                "MEMPLANE_NEO4J__URI": neo4j.uri or "",
                "MEMPLANE_NEO4J__USER": neo4j.user,
                "MEMPLANE_NEO4J__PASSWORD": neo4j.password.get_secret_value(),
            }
        made = Deployment(Path(folder), environment, key, keys_file)
        made.environment["MEMPLANE_SERVICE__PORT"] = str(made.port)
        try:
            yield made
        finally:
            await made.stop()
