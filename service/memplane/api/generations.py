"""What one instance of the service does at a time, for all: drop collections that a rebuild has replaced.

Their time of grace is recorded in `projection_generation`; who drops first does not matter, since dropping twice does
no harm (`memplane.rebuild.drop_retired`).
"""

from __future__ import annotations

import logging
import random

from memplane.api.supervise import sleep
from memplane.api.upkeep import alone
from memplane.errors import IdentityError
from memplane.outbox.patience import DATABASE_ERRORS
from memplane.projections.milvus_client import MilvusConnection
from memplane.rebuild import drop_retired
from memplane.schema.database import Database
from memplane.signal import Signal

log = logging.getLogger(__name__)

ERRORS: tuple[type[BaseException], ...] = (IdentityError, *DATABASE_ERRORS)

SECONDS = 60.0
"""How often it is looked for them."""


class RetiredGenerations:
    """Drops them until the signal aborts."""

    def __init__(self, database: Database, milvus: MilvusConnection, *, seconds: float = SECONDS) -> None:
        self._database = database
        self._milvus = milvus
        self._seconds = seconds

    async def run(self, signal: Signal) -> None:
        """Never raises for a server that is away."""
        while not signal.aborted:
            try:
                if dropped := await alone(self._database, "generations", self._drop):
                    log.info("replaced collections were dropped", extra={"collections": dropped})
            except ERRORS as error:
                log.warning("replaced collections could not be dropped", extra={"error": type(error).__name__})
            await sleep(self._seconds * random.uniform(0.8, 1.2), signal)  # noqa: S311 - jitter, no secret

    async def _drop(self) -> int:
        return len(await drop_retired(self._database, self._milvus))
