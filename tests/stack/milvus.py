"""A real Milvus server from its Python package, authorization on."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from pathlib import Path

from pymilvus import MilvusClient

from tests.stack.model import Server
from tests.stack.process import cache_folder, free_port, spawn, wait_ready

VERSION = "2.3.5"
FIRST_PASSWORD = "Milvus"  # what a new server starts with; replaced before anybody else sees it

# It looks for a free port and silently takes the next one; after a kill, connections of the last life still linger.
_STARTER = """
import socket, sys
plain = socket.socket.bind
def bind(self, address):
    self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    plain(self, address)
socket.socket.bind = bind
from milvus import main
sys.exit(main())
"""


def start(folder: Path) -> Server:
    """Start an empty server with its data in `folder`/milvus.

    The starter leaves its child alive when it ends alone, so callers end the process group.
    """
    data, log = folder / "milvus", folder / "milvus.log"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    # Unpacking the server takes a quarter of a minute; it is kept outside the tree.
    (data / "bin").symlink_to(cache_folder(f"milvus-{VERSION}"))
    # Left alone, the etcd inside takes fixed ports, so that a machine had room for one Milvus only.
    _etcd_configuration(data / "etcd.yaml")
    port = free_port()
    process = _spawn(data, port)
    address = f"http://127.0.0.1:{port}"
    password = secrets.token_hex(12)

    def probe() -> None:
        client = MilvusClient(uri=address, token=f"root:{FIRST_PASSWORD}", timeout=5)
        try:
            client.update_password("root", FIRST_PASSWORD, password)
        finally:
            client.close()

    wait_ready("Milvus", process, probe, seconds=300, log=log)
    server = Server(port=port, user="root", password=password, group=process.pid, data=data)
    _wait_accepted(server, process)
    return server


def start_again(server: Server) -> Server:
    """Start the server on its existing data at the same address, after a crash too. Its group is a new one."""
    assert server.data is not None
    process = _spawn(server.data, server.port)
    server = server.model_copy(update={"group": process.pid})
    _wait_accepted(server, process)
    return server


def _spawn(data: Path, port: int) -> subprocess.Popen[bytes]:
    return spawn(
        [
            sys.executable,
            "-c",
            _STARTER,
            "--data",
            str(data),
            "--proxy-port",
            str(port),
            "--authorization-enabled",
            "true",
        ],
        log=data.with_suffix(".log"),
        cwd=data,
        # A strong read waits for the next tick: 200 ms as shipped, which would be most of the tests' time.
        env={"ETCD_CONFIG_PATH": str(data / "etcd.yaml"), "PROXY_TIMETICKINTERVAL": "25"},
    )


def _wait_accepted(server: Server, process: subprocess.Popen[bytes]) -> None:
    def accepted() -> None:
        client = MilvusClient(
            uri=f"http://127.0.0.1:{server.port}", token=f"{server.user}:{server.password}", timeout=5
        )
        try:
            client.list_collections()
        finally:
            client.close()

    assert server.data is not None
    wait_ready("Milvus", process, accepted, seconds=300, log=server.data.with_suffix(".log"))


def _etcd_configuration(path: Path) -> None:
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    path.write_text(
        f"listen-client-urls: {client}\n"
        f"advertise-client-urls: {client}\n"
        f"listen-peer-urls: {peer}\n"
        f"initial-advertise-peer-urls: {peer}\n"
        f"initial-cluster: default={peer}\n"
        "quota-backend-bytes: 4294967296\n"
        "auto-compaction-mode: revision\n"
        "auto-compaction-retention: '1000'\n",
        encoding="utf-8",
    )
