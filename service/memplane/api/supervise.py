"""Long-running parts of a process: started together, restarted after a failure, stopped in one go.

A part that meets a dependency which is away waits and tries again; one that is refused for good (it belongs to another
backend, a setting cannot work) stays refused and says so in `/readyz`; any other failure is logged and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from memplane.api.logs import describe
from memplane.api.plane import Check
from memplane.errors import IdentityError, MemplaneError, SchemaError, SettingsError, TargetUnavailable
from memplane.signal import Signal

log = logging.getLogger(__name__)

FIRST_DELAY = 0.2
LONGEST_DELAY = 5.0

Run = Callable[[Signal], Awaitable[None]]
"""Works until the signal aborts, then returns in good order."""


@dataclass(slots=True)
class Part:
    """One part and what became of it. `refusal` is set when it will not be tried again."""

    name: str
    run: Run
    task: asyncio.Task[None] | None = None
    waiting: str = ""
    refusal: MemplaneError | None = None
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def check(self) -> Check:
        if self.refusal is not None:
            return Check(False, f"refused: {self.refusal}")
        return Check(not self.waiting, self.waiting)


class Supervisor:
    """Runs parts until `stop`."""

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}
        self._signal = Signal()
        self.refused = asyncio.Event()
        """Set when any part was refused for good."""

    @property
    def parts(self) -> Mapping[str, Part]:
        return self._parts

    def start(self, name: str, run: Run) -> Part:
        """Start a part under a name that is not in use."""
        assert name not in self._parts, f"a part named {name} runs already"
        part = Part(name, run)
        self._parts[name] = part
        part.task = asyncio.create_task(self._keep(part), name=f"memplane:{name}")
        return part

    async def stop(self, seconds: float) -> None:
        """Ask every part to end, wait `seconds` for it, then cancel what is left. Idempotent."""
        self._signal.abort()
        tasks = [part.task for part in self._parts.values() if part.task is not None]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            log.warning("%s did not end in time and is cancelled", task.get_name())
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, part: Part) -> None:
        try:
            await self._again_and_again(part)
        finally:
            part.finished.set()

    async def _again_and_again(self, part: Part) -> None:
        delay = FIRST_DELAY
        while not self._signal.aborted:
            began = asyncio.get_running_loop().time()
            try:
                part.waiting = ""
                await part.run(self._signal)
                return
            except (IdentityError, SettingsError) as error:
                part.refusal = error
                self.refused.set()
                log.critical("%s is refused: %s", part.name, error)
                return
            except (TargetUnavailable, SchemaError) as error:
                self._waits(part, str(error))
            except Exception as error:
                # A defect of one part must not end the others; it is logged with its stack each time.
                self._waits(part, "it failed and is started again")
                log.exception("%s failed: %s", part.name, describe(error))
            if asyncio.get_running_loop().time() - began > LONGEST_DELAY:
                delay = FIRST_DELAY
            await sleep(delay, self._signal)
            delay = min(LONGEST_DELAY, delay * 2)

    @staticmethod
    def _waits(part: Part, reason: str) -> None:
        if part.waiting != reason:
            log.warning("%s waits: %s", part.name, reason)
        part.waiting = reason


async def sleep(seconds: float, signal: Signal) -> None:
    """Wait, at most until the signal aborts."""
    woken = asyncio.Event()
    remove = signal.on_abort(woken.set)
    try:
        await asyncio.wait_for(woken.wait(), seconds)
    except TimeoutError:
        pass
    finally:
        remove()
