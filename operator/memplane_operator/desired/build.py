"""All objects of a backend, in the order in which they are applied."""

from __future__ import annotations

from dataclasses import dataclass

from memplane_operator.desired import jobs, schedules, service, worker
from memplane_operator.desired.config import config_map
from memplane_operator.desired.context import Backend, Facts, Manifest


@dataclass(frozen=True, slots=True)
class Desired:
    """What a backend needs. `foundation` exists before the migration runs, `rollout` is applied after it succeeded."""

    foundation: tuple[Manifest, ...]
    migration: Manifest | None
    rollout: tuple[Manifest, ...]


def build(backend: Backend, facts: Facts) -> Desired:
    """The desired objects (pure)."""
    foundation = [service.service_account(backend), config_map(backend), service.service(backend)]
    foundation += _present(service.network_policy(backend))
    rollout = [service.deployment(backend, facts)]
    rollout += _present(
        service.autoscaler(backend),
        service.disruption_budget(backend),
        service.service_monitor(backend, facts),
        worker.trigger_authentication(backend, facts),
    )
    for target in backend.targets():
        rollout.append(worker.deployment(backend, facts, target))
        rollout += _present(
            worker.scaled_object(backend, facts, target), worker.metrics_service(backend, facts, target)
        )
    rollout += schedules.cron_jobs(backend, facts)
    migrates = backend.spec.store.plugin == "postgres"
    return Desired(tuple(foundation), jobs.migration(backend, facts) if migrates else None, tuple(rollout))


def _present(*objects: Manifest | None) -> list[Manifest]:
    return [manifest for manifest in objects if manifest is not None]
