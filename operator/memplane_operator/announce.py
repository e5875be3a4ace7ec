"""Events on a backend, for `kubectl describe`: best effort, never a reason to fail."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from memplane_operator.cluster import BACKENDS, Cluster
from memplane_operator.errors import ApiError

logger = logging.getLogger(__name__)


async def announce(cluster: Cluster, body: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
    """Post one event of type `kind` (Normal, Warning). A namespace that is going away refuses it; that is fine."""
    metadata = body["metadata"]
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": BACKENDS.api,
            "kind": BACKENDS.kind,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": kind,
        "reason": reason,
        "message": message[:1024],
        "source": {"component": "memplane-operator"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        await cluster.create(event)
    except ApiError as error:
        logger.info("an event was not accepted", extra={"reason": reason, "status": error.status})
