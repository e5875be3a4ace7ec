"""What every outbox worker does beside its claims: take back expired leases, delete what is past its retention.

Source: design sections 6.2, 6.3 and 6.8.
"""

from __future__ import annotations

import logging
import random
import time
from contextlib import suppress

from memplane.outbox.events import Target
from memplane.outbox.notify import Wakeup
from memplane.outbox.patience import GaveUp, Patience, rest
from memplane.outbox.prune import prune_processed
from memplane.outbox.putback import reclaim_expired
from memplane.outbox.retry import RetryPolicy
from memplane.schema.database import Database
from memplane.settings import OutboxSettings
from memplane.signal import Signal

logger = logging.getLogger(__name__)

LONGEST_RECLAIM_PAUSE = 15.0
PRUNE_SECONDS = 60.0
PRUNE_BATCHES = 20
"""Batches of 1,000 that one pruning pass deletes at most, so that it never crowds out the claims."""


async def maintain(
    database: Database,
    target: Target,
    settings: OutboxSettings,
    patience: Patience,
    *,
    wakeup: Wakeup,
    stop: Signal,
) -> None:
    """Reclaim for `target` and prune for all targets, with jitter, until `stop`; `wakeup` tells of returned events."""
    policy = RetryPolicy.of(settings)
    every = min(settings.lease_seconds / 4, LONGEST_RECLAIM_PAUSE)
    pruned_at = time.monotonic() - PRUNE_SECONDS * random.random()  # noqa: S311 - jitter
    with suppress(GaveUp):
        while not stop.aborted:
            reclaimed = await patience.insist(lambda: reclaim_expired(database, target, policy), stop)
            if reclaimed:
                logger.warning(
                    "events were reclaimed from expired leases",
                    extra={"target": target.value, "events": len(reclaimed)},
                )
                wakeup.now()
            if time.monotonic() - pruned_at >= PRUNE_SECONDS:
                pruned_at = time.monotonic()
                await patience.insist(lambda: _prune(database, settings), stop)
            await rest(stop, every * (0.5 + random.random()))  # noqa: S311 - jitter


async def _prune(database: Database, settings: OutboxSettings) -> int:
    return await prune_processed(database, retention_seconds=settings.retention_seconds, max_batches=PRUNE_BATCHES)
