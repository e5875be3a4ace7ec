"""The plan of a chaos run follows from its seed and breaks everything."""

from __future__ import annotations

import pytest
from chaos.faults import POISONS, SERVERS, Deed, plan

PROCESSES = ["milvus-worker-0", "neo4j-worker-0", "service-0"]


def test_a_seed_names_its_plan() -> None:
    assert plan(7, 60, PROCESSES, lease_seconds=4) == plan(7, 60, PROCESSES, lease_seconds=4)
    assert plan(7, 60, PROCESSES, lease_seconds=4) != plan(8, 60, PROCESSES, lease_seconds=4)


@pytest.mark.parametrize("seed", range(20))
def test_a_run_of_minutes_breaks_every_part_in_every_way(seed: int) -> None:
    made = plan(seed, 180, PROCESSES, lease_seconds=4)
    servers = {(fault.deed, fault.victim) for fault in made.servers}
    assert servers == {(deed, name) for deed in (Deed.KILL, Deed.PAUSE) for name in SERVERS}
    processes = {(fault.deed, fault.victim) for fault in made.processes}
    assert {name for _, name in processes} == set(PROCESSES)
    assert {deed for deed, _ in processes} == {Deed.KILL, Deed.PAUSE, Deed.RESTART}
    assert {fault.victim for fault in made.poison} == set(POISONS)
    assert any(fault.deed is Deed.PAUSE and fault.seconds > 4 for fault in made.processes), "a lease must run out"
    assert sum(fault.wait for fault in made.processes) >= 180
