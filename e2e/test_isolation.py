"""Backends that share servers share nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.conftest import Space

pytestmark = pytest.mark.full


def test_two_backends_in_one_namespace_and_one_in_another_are_isolated(make_space: Callable[[], Space]) -> None:
    here, there = make_space(), make_space()
    second = here.spec()
    second["store"]["options"] = {"schema": f"{here.schema}_b"}
    here.kube.apply_backend(here.name, "memory", here.spec())
    here.kube.apply_backend(here.name, "other", second)
    there.kube.apply_backend(there.name, "memory", there.spec())
    here.ready()
    here.ready("other")
    there.ready()
    services = [here.memory(), here.memory("other"), there.memory()]
    ids = [service.write(f"the secret of service {number}")[0] for number, service in enumerate(services)]
    here.converged()
    here.converged("other")
    there.converged()
    for number, service in enumerate(services):
        hits = service.node("MEMORY.SEARCH", {"query": "the secret of service", "limit": 10})
        assert [hit["memory"]["content"] for hit in hits] == [f"the secret of service {number}"]  # type: ignore[index]
        foreign = service.key
        for other in services:
            if other is not service:
                own, other.key = other.key, foreign
                assert other.post(("/v1/nodes/MEMORY.GET", {"ids": ids}))[0][0] == 401, "a key opens one backend"
                other.key = own
    here.kube.delete_backend(here.name, "other")
    assert services[0].node("MEMORY.GET", {"ids": [ids[0]]}), "the neighbour's deletion is not ours"
