"""A backend's children in the cluster: read by label, applied when they differ, pruned when no longer desired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from memplane_operator.cluster import CHILDREN, KEDA, MONITORING, Cluster, Resource, resource_of
from memplane_operator.desired.context import Backend, Facts, Manifest
from memplane_operator.desired.labels import BACKEND_LABEL
from memplane_operator.owned import in_sync, owned_fields, owns

HANDOVER_MANAGER = "memplane-operator-handover"
AUTOSCALERS = frozenset({"HorizontalPodAutoscaler", "ScaledObject"})

Key = tuple[str, str]
"""Kind and name of a child."""


def key_of(manifest: Manifest) -> Key:
    return manifest["kind"], manifest["metadata"]["name"]


@dataclass(slots=True)
class Changes:
    """What one reconciliation wrote, for events, metrics and tests."""

    applied: list[Key] = field(default_factory=list)
    pruned: list[Key] = field(default_factory=list)


def kinds(facts: Facts) -> tuple[Resource, ...]:
    """The kinds of children that this cluster can hold."""
    return CHILDREN + (KEDA if facts.keda else ()) + (MONITORING if facts.service_monitors else ())


async def live_children(cluster: Cluster, backend: Backend, facts: Facts) -> dict[Key, Manifest]:
    """The backend's own children, by kind and name; objects that somebody else labelled alike are left out."""
    found: dict[Key, Manifest] = {}
    for resource in kinds(facts):
        for item in await cluster.list(resource, backend.namespace, selector=f"{BACKEND_LABEL}={backend.name}"):
            owners = item["metadata"].get("ownerReferences", [])
            if any(owner.get("uid") == backend.uid for owner in owners):
                found[key_of(item)] = item
    return found


async def apply(cluster: Cluster, live: Mapping[Key, Manifest], desired: Iterable[Manifest], changes: Changes) -> None:
    """Server-side apply of what differs in the fields that we own."""
    for manifest in desired:
        current = live.get(key_of(manifest))
        if current is not None and in_sync(current, manifest):
            continue
        if current is not None:
            await _hand_over_replicas(cluster, current, manifest)
        await cluster.apply(manifest)
        changes.applied.append(key_of(manifest))


async def _hand_over_replicas(cluster: Cluster, live: Manifest, desired: Manifest) -> None:
    """Keep the live number when an autoscaler takes over: without an owner the field would fall back to 1."""
    if desired["kind"] != "Deployment" or "replicas" in desired["spec"]:
        return
    if not owns(owned_fields(live), "spec", "replicas"):
        return
    metadata = live["metadata"]
    await cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "spec": {"replicas": live["spec"].get("replicas", 1)},
        },
        manager=HANDOVER_MANAGER,
    )


async def prune(
    cluster: Cluster,
    backend: Backend,
    live: Mapping[Key, Manifest],
    wanted: Iterable[Manifest],
    changes: Changes,
    *,
    only: frozenset[str] | None = None,
) -> None:
    """Delete children that are no longer desired; `only` limits it to some kinds."""
    keep = {key_of(manifest) for manifest in wanted}
    for key, item in live.items():
        if key in keep or key in changes.pruned or (only is not None and key[0] not in only):
            continue
        if item["metadata"].get("deletionTimestamp"):
            continue
        await cluster.delete(resource_of(item), backend.namespace, key[1])
        changes.pruned.append(key)
