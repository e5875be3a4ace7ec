"""Each store needs its own extra alone: nothing of it imports another database's driver."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import memplane.plugins.{store}.plugin
"""


@pytest.mark.parametrize(
    ("store", "absent"),
    [("mysql", ("asyncpg", "pymilvus", "neo4j", "fastapi")), ("milvus", ("asyncpg", "asyncmy", "neo4j", "fastapi"))],
)
def test_a_store_imports_its_own_driver_alone(store: str, absent: tuple[str, ...]) -> None:
    subprocess.run([sys.executable, "-c", BLOCKED.format(store=store, absent=absent)], check=True, timeout=60)
