"""One backend of the run's own: its database, keys and settings, and the processes that serve it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from tests.stack import Stack
from tests.stack.process import free_port

from chaos.evidence import DATABASE, connect
from chaos.machinery import ProcessPart, skewed
from memplane.api.auth.identity import Role
from memplane.api.auth.key_file import KeyFile, new_key, render_key_file

TENANT = "acme"
USERS = ("ann", "bob")
LEASE_SECONDS = 8.0
SKEWS = (-7_200, 10_800, -86_400, 3_600, 0, 0)
"""Seconds by which the processes' clocks are wrong, in the order of their names."""

SETTINGS = {
    "OUTBOX__LEASE_SECONDS": f"{LEASE_SECONDS:g}",
    "OUTBOX__RENEW_SECONDS": "2",
    "OUTBOX__CALL_TIMEOUT": "7",
    "OUTBOX__BATCH_SIZE": "50",
    "OUTBOX__CONCURRENCY": "2",
    "OUTBOX__POLL_SECONDS": "0.5",
    "OUTBOX__BREAKER_SECONDS": "1",
    "OUTBOX__RETRY_BASE_SECONDS": "0.5",
    "OUTBOX__RETRY_MAX_SECONDS": "5",
    "OUTBOX__DRAIN_SECONDS": "10",
    "POSTGRES__CONNECT_TIMEOUT": "3",
    "POSTGRES__STATEMENT_TIMEOUT": "10",
    "MILVUS__TIMEOUT": "8",
    "NEO4J__TIMEOUT": "8",
    "SERVICE__REQUEST_TIMEOUT": "12",
    "SERVICE__SHUTDOWN_SECONDS": "10",
    "UPKEEP__PRUNE_SECONDS": "5",
    "LOG__LEVEL": "INFO",
}
"""Short leases and pauses, so that a run of minutes sees what a production sees in weeks."""


@dataclass(frozen=True)
class Deployment:
    """`urls` are the services'."""

    folder: Path
    environment: dict[str, str]
    urls: list[str]
    key: str
    processes: dict[str, ProcessPart]

    def command(self, *arguments: str, expect: tuple[int, ...] = (0,), seconds: float = 180) -> Any:
        """Run `memplane --json …` to its end and return its document. Raises `RuntimeError` for another exit code."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")}
        ended = subprocess.run(
            [sys.executable, "-m", "memplane", "--json", *arguments],
            env={**clean, **self.environment},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if ended.returncode not in expect:
            raise RuntimeError(f"memplane {' '.join(arguments)} ended with {ended.returncode}: {ended.stderr[-2000:]}")
        return json.loads(ended.stdout) if ended.stdout.strip() else None

    def answering(self) -> bool:
        """Are all services ready?"""
        for url in self.urls:
            try:
                if httpx.get(f"{url}/readyz", timeout=5).status_code != httpx.codes.OK:
                    return False
            except httpx.HTTPError:
                return False
        return True


async def deploy(stack: Stack, folder: Path) -> Deployment:
    """Make the database and describe the processes; nothing of them runs yet."""
    connection = await asyncpg.connect(stack.dsn(), timeout=10)
    try:
        await connection.execute(f"CREATE DATABASE {DATABASE}")
    finally:
        await connection.close()
    key, entry = new_key(tenant=TENANT, users="*", roles=[Role.READER, Role.WRITER, Role.ADMIN])
    keys = folder / "keys.yaml"
    keys.write_text(render_key_file(KeyFile(keys=[entry])), encoding="utf-8")
    environment = _environment(stack, keys)
    ports = [free_port() for _ in range(2)]
    processes: dict[str, ProcessPart] = {}
    for number, port in enumerate(ports):
        processes[f"service-{number}"] = _part(
            folder, f"service-{number}", ("serve",), environment | {"MEMPLANE_SERVICE__PORT": str(port)}
        )
    for target in ("milvus", "neo4j"):
        for number in range(2):
            name = f"{target}-worker-{number}"
            processes[name] = _part(
                folder, name, ("worker", target), environment | {"MEMPLANE_WORKER__PORT": str(free_port())}
            )
    for part, skew in zip(sorted(processes.values(), key=lambda one: one.name), SKEWS, strict=True):
        if skew:
            part.environment = {**part.environment, **skewed(skew)}
    made = Deployment(folder, environment, [f"http://127.0.0.1:{port}" for port in ports], key, processes)
    await asyncio.to_thread(made.command, "migrate")
    return made


def _part(folder: Path, name: str, command: tuple[str, ...], environment: dict[str, str]) -> ProcessPart:
    return ProcessPart(name, command, environment, folder / f"{name}.log")


def _environment(stack: Stack, keys: Path) -> dict[str, str]:
    milvus, neo4j = stack.milvus_settings(), stack.neo4j_settings()
    assert milvus.token is not None
    assert neo4j.password is not None
    return {f"MEMPLANE_{name}": value for name, value in SETTINGS.items()} | {
        "MEMPLANE_POSTGRES__DSN": stack.dsn(DATABASE),
        "MEMPLANE_MILVUS__URI": milvus.uri or "",
        "MEMPLANE_MILVUS__TOKEN": milvus.token.get_secret_value(),
        "MEMPLANE_NEO4J__URI": neo4j.uri or "",
        "MEMPLANE_NEO4J__USER": neo4j.user,
        "MEMPLANE_NEO4J__PASSWORD": neo4j.password.get_secret_value(),
        "MEMPLANE_AUTH__API_KEYS_FILE": str(keys),
    }


async def unfinished(stack: Stack) -> dict[str, int]:
    """Events that wait or are in flight, and those given up, by target and status. Empty: all is done."""
    connection = await connect(stack)
    try:
        rows = await connection.fetch(
            "SELECT target || ' ' || status AS what, count(*) AS n FROM memplane.memory_outbox"
            " WHERE status <> 'processed' GROUP BY 1"
        )
    finally:
        with contextlib.suppress(OSError):
            await connection.close()
    return {row["what"]: row["n"] for row in rows}
