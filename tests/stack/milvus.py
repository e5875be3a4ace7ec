"""A real Milvus server from its Python package, authorization on."""

from __future__ import annotations

import secrets
import shutil
import sys
from pathlib import Path

from pymilvus import MilvusClient

from tests.stack.model import Server
from tests.stack.process import cache_folder, free_port, spawn, wait_ready

VERSION = "2.3.5"
FIRST_PASSWORD = "Milvus"  # what a new server starts with; replaced before anybody else sees it


def start(folder: Path) -> Server:
    """Start an empty server with its data in `folder`/milvus.

    The starter leaves its child alive when it ends alone, so callers end the process group.
    """
    data, log = folder / "milvus", folder / "milvus.log"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    # Unpacking the server takes a quarter of a minute; it is kept outside the tree.
    (data / "bin").symlink_to(cache_folder(f"milvus-{VERSION}"))
    port = free_port()
    process = spawn(
        [
            sys.executable,
            "-c",
            "import sys; from milvus import main; sys.exit(main())",
            "--data",
            str(data),
            "--proxy-port",
            str(port),
            "--authorization-enabled",
            "true",
        ],
        log=log,
        cwd=data,
        # Left alone, the etcd inside takes fixed ports, so that a machine had room for one Milvus only.
        # A strong read waits for the next tick: 200 ms as shipped, which would be most of the tests' time.
        env={
            "ETCD_CONFIG_PATH": str(_etcd_configuration(data / "etcd.yaml")),
            "PROXY_TIMETICKINTERVAL": "25",
        },
    )
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

    def accepted() -> None:
        client = MilvusClient(uri=address, token=f"root:{password}", timeout=5)
        try:
            client.list_collections()
        finally:
            client.close()

    wait_ready("Milvus", process, accepted, seconds=60, log=log)
    return server


def _etcd_configuration(path: Path) -> Path:
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
    return path
