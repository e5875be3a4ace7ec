"""What is broken when: a plan that follows from a seed. Pure.

Three lanes run beside each other: memplane's own processes, the servers beneath them, and poisoned events. Within a
lane one thing happens after another; a pause of a worker is now and then longer than its lease.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Deed(StrEnum):
    KILL = "kill"
    """SIGKILL, and a start after `seconds`."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT after `seconds`."""
    RESTART = "restart"
    """SIGTERM, wait, and a start at once: a rolling update."""
    POISON = "poison"


@dataclass(frozen=True, slots=True)
class Fault:
    """`wait` seconds after the one before it in its lane has ended, `deed` happens to `victim`."""

    wait: float
    deed: Deed
    victim: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The lanes; each is long enough that it does not end before the run does."""

    processes: Sequence[Fault]
    servers: Sequence[Fault]
    poison: Sequence[Fault]


SERVERS = ("postgres", "milvus", "neo4j")
POISONS = (
    "unknown memory",
    "version of the future",
    "unreadable payload",
    "claimed by nobody",
    "nearly dead",
    "of no type",
)


def plan(seed: int, seconds: float, processes: Sequence[str], *, lease_seconds: float) -> Plan:
    """A plan for a run of this length. The same arguments give the same plan."""
    dice = random.Random(seed)
    return Plan(
        processes=_lane(seconds, lambda: _process_fault(dice, processes, lease_seconds)),
        servers=_server_lane(dice, seconds),
        poison=_lane(seconds, lambda: Fault(dice.uniform(2, 6), Deed.POISON, dice.choice(POISONS))),
    )


def _lane(seconds: float, draw: Callable[[], Fault]) -> list[Fault]:
    """Enough faults for the whole run, were each of them over at once."""
    faults: list[Fault] = []
    while sum(fault.wait for fault in faults) < seconds:
        faults.append(draw())
    return faults


def _process_fault(dice: random.Random, processes: Sequence[str], lease_seconds: float) -> Fault:
    deed = dice.choice([Deed.KILL, Deed.KILL, Deed.PAUSE, Deed.PAUSE, Deed.RESTART])
    longest = lease_seconds * 1.6 if deed is Deed.PAUSE else 2.0
    return Fault(dice.uniform(1, 5), deed, dice.choice(processes), round(dice.uniform(0.2, longest), 2))


def _server_lane(dice: random.Random, seconds: float) -> list[Fault]:
    """Rounds in which everything happens to every server once, in another order each time."""
    faults: list[Fault] = []
    while sum(fault.wait for fault in faults) < seconds:
        both = [(deed, server) for deed in (Deed.KILL, Deed.PAUSE) for server in SERVERS]
        dice.shuffle(both)
        for deed, server in both:
            away = dice.uniform(0.5, 8 if deed is Deed.PAUSE else 3)
            faults.append(Fault(dice.uniform(4, 9), deed, server, round(away, 2)))
    return faults
