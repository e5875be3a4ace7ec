"""Work that runs to its end: the migration before a rollout, and what a deletion drops."""

from __future__ import annotations

from memplane_operator.desired.config import schema_name
from memplane_operator.desired.context import Backend, Facts, Manifest
from memplane_operator.desired.labels import metadata
from memplane_operator.desired.pods import digest, pod_template

MIGRATE_DEADLINE_SECONDS = 1800
DROP_DEADLINE_SECONDS = 300


def migration_name(backend: Backend, facts: Facts) -> str:
    """Named by what a migration depends on: the image, the connection's content, the schema. Same inputs, same Job."""
    ref = backend.spec.store.connection_secret_ref
    inputs = (
        facts.image(backend.spec.image),
        facts.checksums.get(f"{ref.name}/{ref.key}", ""),
        schema_name(backend),
    )
    return f"{backend.name}-migrate-{digest(*inputs)[:10]}"


def migration(backend: Backend, facts: Facts) -> Manifest:
    """The Job that brings the schema up to the image; the rollout waits for it, and a failed one stops it."""
    name = migration_name(backend, facts)
    return _job(backend, facts, name, "migrate", ["migrate"], deadline=MIGRATE_DEADLINE_SECONDS, retries=4)


def drop(backend: Backend, facts: Facts) -> Manifest:
    """The Job of `deletionPolicy: Delete`: drops projections, then the schema."""
    name = f"{backend.name}-drop"
    return _job(backend, facts, name, "drop", ["drop", "--yes"], deadline=DROP_DEADLINE_SECONDS, retries=3)


def _job(
    backend: Backend, facts: Facts, name: str, component: str, args: list[str], *, deadline: int, retries: int
) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(backend, name, component),
        "spec": {
            "backoffLimit": retries,
            "activeDeadlineSeconds": deadline,
            "template": pod_template(backend, facts, component, args, restart="Never"),
        },
    }
