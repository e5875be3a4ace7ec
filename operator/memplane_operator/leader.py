"""One leader by a Lease: who cannot renew in time stops acting before anybody else may start.

The holder renews at a third of the lease; a candidate waits a whole lease of its own clock since it last saw the Lease
change, so clocks of different machines are never compared.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

from memplane_operator.cluster import LEASES, Cluster
from memplane_operator.desired.context import Manifest
from memplane_operator.errors import ApiError, Conflict, NotFound

logger = logging.getLogger(__name__)
LEASE_NAME = "memplane-operator"


class Leadership:
    """Campaigns for the Lease; `leading` is set while this process holds it."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        identity: str,
        lease_seconds: int,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._cluster, self._namespace, self._identity, self._lease = cluster, namespace, identity, lease_seconds
        self._clock = clock
        self.leading = asyncio.Event()
        self.lost = asyncio.Event()
        self._renewed = 0.0
        self._seen: tuple[str, float] = ("", 0.0)

    async def run(self) -> None:
        """Campaign and renew until cancelled. `lost` is set once when leadership ends: the process must then exit."""
        while True:
            try:
                held = await asyncio.wait_for(self._try(), self._lease / 3)
            except (ApiError, TimeoutError):
                held = None
            now = self._clock()
            if held:
                self._renewed = now
                if not self.leading.is_set():
                    logger.info("leading", extra={"identity": self._identity})
                    self.leading.set()
            elif self.leading.is_set() and (held is False or now - self._renewed > self._lease * 2 / 3):
                logger.warning("leadership lost", extra={"identity": self._identity})
                self.leading.clear()
                self.lost.set()
                return
            await asyncio.sleep(self._lease / 3 * random.uniform(0.8, 1.0))  # noqa: S311 - jitter, not a secret

    async def release(self) -> None:
        """Give the Lease back, so that a successor need not wait it out."""
        if not self.leading.is_set():
            return
        self.leading.clear()
        try:
            lease = await self._cluster.get(LEASES, self._namespace, LEASE_NAME)
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                await self._cluster.replace(LEASES, lease)
        except ApiError:
            return  # it runs out by itself

    async def _try(self) -> bool | None:
        """True: held now; False: somebody else holds it; None: unclear, try again."""
        try:
            lease = await self._cluster.get(LEASES, self._namespace, LEASE_NAME)
        except NotFound:
            await self._cluster.create(self._manifest())
            return True
        spec = lease.get("spec", {})
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and not self._expired(lease):
            return False
        lease["spec"] = {**spec, **self._spec()}
        if holder != self._identity:
            lease["spec"]["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        try:
            await self._cluster.replace(LEASES, lease)
        except Conflict:
            return None
        return True

    def _expired(self, lease: Manifest) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, self._clock())
            return False
        return self._clock() - self._seen[1] > self._lease

    def _manifest(self) -> Manifest:
        return {
            "apiVersion": LEASES.api,
            "kind": LEASES.kind,
            "metadata": {"name": LEASE_NAME, "namespace": self._namespace},
            "spec": self._spec(),
        }

    def _spec(self) -> Manifest:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {"holderIdentity": self._identity, "leaseDurationSeconds": self._lease, "renewTime": now}
