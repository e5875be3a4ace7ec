"""What happens when a backend is deleted (design section 9).

`Retain` needs nothing: the garbage collector removes the children, the data stays. `Delete` holds the object by a
finalizer until a Job has dropped projections and schema. The finalizer always goes: at the Job's end or deadline, when
a Secret is missing, and in a namespace that is itself being deleted, where no Job can be made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memplane_operator import children
from memplane_operator.cluster import BACKENDS, NAMESPACES, Cluster
from memplane_operator.desired import jobs
from memplane_operator.desired.context import Backend, Facts
from memplane_operator.errors import ApiError, NotFound
from memplane_operator.observe import job_state

FINALIZER = "memplane.dev/drop"
TERMINATING = "The namespace is being deleted, so no Job can drop projections and schema: they were left behind"


@dataclass(frozen=True, slots=True)
class Deletion:
    """Where a deletion stands. `done`: the finalizer may go; `warning` says what was left behind."""

    done: bool
    warning: str = ""


def wants_finalizer(backend: Backend) -> bool:
    return backend.spec.deletion_policy == "Delete" and backend.spec.store.plugin == "postgres"


async def set_finalizer(cluster: Cluster, body: dict[str, Any], present: bool) -> bool:
    """Add or remove our finalizer, leaving others'. True when something was written."""
    metadata = body["metadata"]
    current = list(metadata.get("finalizers") or [])
    if (FINALIZER in current) == present:
        return False
    wanted = [*current, FINALIZER] if present else [name for name in current if name != FINALIZER]
    patch = {"metadata": {"finalizers": wanted, "resourceVersion": metadata["resourceVersion"]}}
    try:
        await cluster.patch(BACKENDS, metadata["namespace"], metadata["name"], patch)
    except NotFound:
        return False
    return True


async def namespace_terminating(cluster: Cluster, namespace: str) -> bool:
    """Whether the namespace is going away. Unknown counts as no: the Job's deadline ends the wait."""
    try:
        found = await cluster.get(NAMESPACES, None, namespace)
    except NotFound:
        return True
    except ApiError:
        return False
    return bool(found["metadata"].get("deletionTimestamp"))


async def drop(cluster: Cluster, backend: Backend, facts: Facts) -> Deletion:
    """One step of a deletion with policy Delete: stop what writes, run the drop Job, tell how far it is."""
    live = await children.live_children(cluster, backend, facts)
    job = live.get(("Job", f"{backend.name}-drop"))
    state = job_state(job)
    if state == "succeeded":
        return Deletion(done=True)
    if state == "failed":
        return Deletion(
            done=True, warning="Dropping projections and schema failed or took too long: they were left behind"
        )
    for resource in (r for r in children.kinds(facts) if r.kind in ("ScaledObject", "Deployment", "CronJob")):
        for key in [key for key in live if key[0] == resource.kind]:
            await cluster.delete(resource, backend.namespace, key[1])
    if state == "absent":
        try:
            await cluster.apply(jobs.drop(backend, facts))
        except ApiError as error:
            # Without the right to read namespaces, one that goes away is noticed here at the latest.
            if error.status == 403 and "being terminated" in error.message:
                return Deletion(done=True, warning=TERMINATING)
            raise
    return Deletion(done=False)
