"""Carrying out a plan: the lanes of faults, each doing one thing after another."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import asyncpg
from tests.stack import Stack

from chaos.evidence import connect
from chaos.faults import Deed, Fault, Plan
from chaos.machinery import Part
from chaos.poison import poison

Say = Callable[[str], None]


class Wrecker:
    """Breaks things until its time is over, and leaves everything running."""

    def __init__(self, stack: Stack, parts: Mapping[str, Part], seed: int, say: Say) -> None:
        self._stack = stack
        self._parts = parts
        self._dice = random.Random(seed)
        self._say = say
        self.done: Counter[str] = Counter()
        """What happened how often, by victim's kind and deed."""

    async def run(self, plan: Plan, seconds: float) -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(
            self._lane(plan.processes, end), self._lane(plan.servers, end), self._lane(plan.poison, end)
        )

    async def _lane(self, faults: Sequence[Fault], end: float) -> None:
        for fault in faults:
            left = end - time.monotonic()
            if left < fault.wait + fault.seconds:
                await asyncio.sleep(max(0.0, left))
                return
            await asyncio.sleep(fault.wait)
            await self._do(fault)

    async def _do(self, fault: Fault) -> None:
        if fault.deed is Deed.POISON:
            await self._poison(fault.victim)
            return
        part = self._parts[fault.victim]
        self._say(f"{fault.deed} {fault.victim} for {fault.seconds:g} s")
        self.done[f"{fault.deed} {_kind(fault.victim)}"] += 1
        match fault.deed:
            case Deed.KILL:
                await asyncio.to_thread(part.kill)
                await asyncio.sleep(fault.seconds)
                await asyncio.to_thread(part.start)
            case Deed.PAUSE:
                part.pause()
                try:
                    await asyncio.sleep(fault.seconds)
                finally:
                    part.resume()
            case Deed.RESTART:
                await asyncio.to_thread(part.restart)

    async def _poison(self, kind: str) -> None:
        try:
            async with asyncio.timeout(5):
                connection = await connect(self._stack)
                try:
                    inserted = await poison(connection, kind, self._dice)
                finally:
                    connection.terminate()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return  # PostgreSQL is away, too
        self.done[f"poison: {kind}" if inserted else "poison kept out"] += 1


def _kind(victim: str) -> str:
    return victim.rstrip("0123456789").rstrip("-")
