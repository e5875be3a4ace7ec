"""Deletion: Retain keeps the data, Delete takes exactly its own, and nothing ever hangs."""

from __future__ import annotations

import kubernetes

from e2e.conftest import SYSTEM, Space
from e2e.waiting import eventually


def schemas(space: Space) -> set[str]:
    (postgres,) = space.kube.pods(SYSTEM, "memplane.dev/trial=postgres")
    command = 'PGPASSWORD="$POSTGRES_PASSWORD" psql -h 127.0.0.1 -U memplane -Atc "SELECT nspname FROM pg_namespace"'
    out = space.kube.exec(SYSTEM, postgres["metadata"]["name"], ["sh", "-c", command])
    return set(out.split())


def gone(space: Space, name: str = "memory") -> bool:
    return space.kube.backend(space.name, name) is None


def test_retain_keeps_the_data_and_a_new_backend_finds_it(space: Space) -> None:
    space.kube.apply_backend(space.name, "memory", space.spec(projections={}))
    space.ready()
    (kept,) = space.memory().write("kept over the deletion")
    space.kube.delete_backend(space.name, "memory")
    eventually("the backend is gone", lambda: gone(space))
    eventually("its children are gone", lambda: space.kube.deployment(space.name, "memory") is None)
    assert space.schema in schemas(space)
    space.kube.apply_backend(space.name, "memory", space.spec(projections={}))
    space.ready()
    assert space.memory().node("MEMORY.GET", {"ids": [kept]})


def test_delete_drops_the_schema(space: Space) -> None:
    space.kube.apply_backend(space.name, "memory", space.spec(deletionPolicy="Delete"))
    space.ready()
    space.memory().write("to be dropped")
    assert space.schema in schemas(space)
    space.kube.delete_backend(space.name, "memory")
    eventually("the backend is gone", lambda: gone(space), timeout=240)
    assert space.schema not in schemas(space)


def test_a_namespace_with_a_backend_of_policy_delete_always_ends(space: Space) -> None:
    space.kube.apply_backend(space.name, "memory", space.spec(deletionPolicy="Delete", projections={}))
    space.ready()
    space.kube.core.delete_namespace(space.name)

    def ended() -> bool:
        try:
            space.kube.core.read_namespace(space.name)
        except kubernetes.client.ApiException as error:
            return bool(error.status == 404)
        return False

    eventually("the namespace is gone", ended, timeout=240)
