"""The public list: exactly the names of the design, each importable, none of them paid for before it is used."""

from __future__ import annotations

import subprocess
import sys

import memplane

PUBLIC = {
    "CallOptions",
    "EmbeddingProvider",
    "MemorySearchProvider",
    "MemoryStore",
    "NodeFailed",
    "NodeResult",
    "PluginError",
    "Scope",
    "Signal",
    "StoreBackend",
    "create_memory",
    "create_memory_worker",
    "memory_delete_node",
    "memory_get_node",
    "memory_query_node",
    "memory_search_node",
    "memory_update_node",
    "memory_write_node",
}

# What only extras install, by import name.
EXTRAS = "asyncpg pymilvus neo4j asyncmy httpx fastapi starlette uvicorn prometheus_client jwt typer rich kopf numpy"

BLOCK = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS.split()!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""

USE_THE_SDK = """
import asyncio
from memplane import *
from memplane import Scope, create_memory, create_memory_worker
from memplane.runtime import create_runtime
from memplane.plugins.registry import Resources, create_embedding, create_store

async def main():
    backend = create_store("inmemory", {}, Resources())
    await backend.start()
    store = backend.scoped(Scope("acme", "ada"))
    memory = create_memory(store=store)
    [item] = (await memory.write({"memories": [{"content": "prefers metric units"}]})).unwrap()
    hits = (await memory.search({"query": "units"})).unwrap()
    assert hits[0]["memory"]["id"] == item["id"]
    runtime = create_runtime(workers=[create_memory_worker(store=store)])
    result = await runtime.invoke("MEMORY.GET", {"ids": [item["id"]]})
    assert result.unwrap()[0]["content"] == "prefers metric units"
    await runtime.close()
    await backend.close()
    [vector] = await create_embedding("hashing", {}, Resources()).embed(["text"], purpose="query")
    print(len(vector))

asyncio.run(main())
"""


def python(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    ).stdout


def test_the_list_is_the_designs() -> None:
    assert set(memplane.__all__) == PUBLIC
    assert list(memplane.__all__) == sorted(memplane.__all__)


def test_every_name_is_there_and_comes_from_its_home() -> None:
    for name in PUBLIC:
        value = getattr(memplane, name)
        assert value is getattr(memplane, name)
        assert type(value).__module__.startswith("memplane") or value.__module__.startswith("memplane")
    assert set(dir(memplane)) >= PUBLIC
    assert not hasattr(memplane, "no_such_name")


def test_importing_the_package_imports_nothing_else() -> None:
    shown = python("import sys; import memplane; print([m for m in sys.modules if m.startswith('memplane.')])")
    assert shown == "[]\n"


def test_the_sdk_imports_no_driver_and_no_runtime() -> None:
    shown = python(
        "import sys; from memplane import create_memory; "
        f"names = {EXTRAS.split()!r} + ['pydantic', 'yaml', 'memplane.runtime']; "
        "print([n for n in names if n in sys.modules])"
    )
    assert shown == "[]\n"


def test_the_worker_and_the_registry_import_no_driver() -> None:
    shown = python(
        "import sys; from memplane import create_memory_worker; import memplane.runtime, memplane.plugins.registry; "
        f"print([n for n in {EXTRAS.split()!r} if n in sys.modules])"
    )
    assert shown == "[]\n"


def test_without_any_extra_the_sdk_works() -> None:
    assert python(BLOCK + USE_THE_SDK) == "384\n"


def test_without_its_extra_a_plugin_says_what_to_install() -> None:
    program = BLOCK + (
        "from memplane.errors import SettingsError\n"
        "from memplane.plugins.registry import load_store, load_embedding\n"
        "for load, name in ((load_store, 'postgres'), (load_embedding, 'openai')):\n"
        "    try:\n        load(name)\n    except SettingsError as error:\n        print(error)\n"
    )
    postgres, openai = python(program).splitlines()
    assert "needs the Python module 'asyncpg'" in postgres
    assert "memplane[postgres]" in postgres
    assert "needs the Python module 'httpx'" in openai
    assert "memplane[openai]" in openai
