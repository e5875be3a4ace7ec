"""A declared backend becomes Ready, and what is written through its Service is found, followed and gone again."""

from __future__ import annotations

from e2e.conftest import Space
from e2e.waiting import eventually


def test_declare_write_search_update_delete(space: Space) -> None:
    space.kube.apply_backend(space.name, "memory", space.spec())
    space.ready()
    memory = space.memory()
    coffee, tea = memory.write("The user prefers coffee in the morning", "The user drinks green tea at night")
    assert memory.search("coffee in the morning")[0] == coffee
    space.converged()
    assert memory.search("coffee in the morning", strategy="vector")[0] == coffee

    memory.node("MEMORY.UPDATE", {"memories": [{"id": coffee, "content": "The user has given up coffee for cocoa"}]})
    assert memory.node("MEMORY.GET", {"ids": [coffee]})[0]["version"] == 2  # type: ignore[index]
    assert memory.node("MEMORY.DELETE", {"ids": [tea]}) == {"deleted": [tea]}
    eventually("the deleted memory is not found", lambda: tea not in memory.search("green tea at night"))
    space.converged()
    assert tea not in memory.search("green tea at night", strategy="vector")

    for target in ("milvus", "neo4j"):
        report = space.audit(target)
        assert sum(report["mismatches"].values()) == 0, report


def test_a_request_without_a_key_is_refused(space: Space) -> None:
    space.kube.apply_backend(space.name, "memory", space.spec(projections={}))
    space.ready()
    memory = space.memory()
    memory.key = "mp_not_a_key"
    assert memory.post(("/v1/nodes/MEMORY.GET", {"ids": ["1"]}))[0][0] == 401
