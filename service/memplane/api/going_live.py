"""From Shadow to Live: a full repair of what Shadow mode only compared (design section 6.9).

Runs beside the live worker that works off the repairs. One process of all makes the repair, by the reconciler's own
rule; the others look again later. As long as some worker still runs in Shadow, as in the middle of a rollout, another
repair becomes due with every event that it ends.
"""

from __future__ import annotations

import logging
import random
from typing import Final

from memplane.api.connections import Connections
from memplane.api.supervise import sleep
from memplane.outbox.events import Target
from memplane.outbox.shadow import Shadowed, read_shadowed, settle_shadowed
from memplane.reconcile import AlreadyRunning, reconcile
from memplane.signal import Signal

log: Final = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
"""How often a live worker asks whether a repair is due."""


class GoingLive:
    """Repairs `target` in full whenever events of it ended in Shadow mode since the last time."""

    def __init__(self, connections: Connections, target: Target, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._connections = connections
        self._target = target
        self._look_seconds = look_seconds

    @property
    def needed(self) -> bool:
        """A process in Shadow mode repairs nothing: its workers would not write it."""
        return self._connections.settings.outbox.mode == "Live"

    async def run(self, signal: Signal) -> None:
        """Works until `signal` aborts. Raises `TargetUnavailable` when a server is away; it is started again."""
        await self._connections.open_truth()
        while not signal.aborted:
            seen = await read_shadowed(self._connections.database, self._target)
            if seen.due:
                await self._repair(seen, signal)
            await sleep(self._look_seconds * random.uniform(0.8, 1.2), signal)  # noqa: S311 - jitter, no secret

    async def _repair(self, seen: Shadowed, signal: Signal) -> None:
        facts = {"target": self._target.value, "shadowed": seen.compared - seen.repaired}
        projection = self._connections.projection(self._target)
        log.info("going live: a full repair of what Shadow mode compared begins", extra=facts)
        try:
            # A run that is taken up again may have begun before the last event ended in Shadow mode.
            report = await reconcile(
                self._connections.database,
                projection,
                mode="repair",
                signal=signal,
                resume=False,
                settings=self._connections.settings.reconcile,
            )
        except AlreadyRunning:
            return
        finally:
            await projection.close()
        if report.state == "completed":
            await settle_shadowed(self._connections.database, self._target, seen)
            log.info("going live: the full repair is through", extra={**facts, "repaired": dict(report.repaired)})
        elif not signal.aborted:
            log.error("going live: the full repair failed", extra={**facts, "run": report.run_id, "why": report.error})
