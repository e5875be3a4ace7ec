"""A changed Secret rolls the pods, without an interruption of service."""

from __future__ import annotations

from e2e.conftest import Space
from e2e.waiting import eventually


def template_inputs(space: Space) -> str:
    deployment = space.kube.deployment(space.name, "memory")
    assert deployment is not None
    return str(deployment["spec"]["template"]["metadata"]["annotations"]["memplane.dev/inputs"])


def test_a_rotated_connection_rolls_the_pods_while_the_service_answers(space: Space) -> None:
    space.kube.apply_backend(space.name, "memory", space.spec(projections={}))
    space.ready()
    memory, before = space.memory(), template_inputs(space)
    (kept,) = memory.write("survives the rotation")
    # Another spelling of the same address stands for a new password: its content differs, so the pods must roll.
    space.kube.secret(space.name, "stores", {"postgres": space.addresses["postgres"] + "?application_name=rotated"})
    eventually("the rollout begins", lambda: template_inputs(space) != before, timeout=240)

    def rolled_out() -> bool:
        assert memory.node("MEMORY.GET", {"ids": [kept]}), "the service is interrupted"
        status = (space.kube.deployment(space.name, "memory") or {}).get("status", {})
        return bool(status.get("updatedReplicas") == status.get("replicas") == status.get("readyReplicas") == 1)

    eventually("the rollout ends", rolled_out, timeout=300)
    space.ready()
