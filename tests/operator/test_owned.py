"""Whether an apply would change anything, judged by the fields that we own."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from memplane_operator.owned import in_sync

DESIRED: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "memory", "namespace": "agents", "labels": {"a": "1"}},
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "memplane",
                        "image": "memplane:1",
                        "args": ["serve"],
                        "env": [{"name": "A", "value": "1"}],
                        "resources": {"requests": {"cpu": "0.5"}},
                        "ports": [{"containerPort": 8080}],
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            }
        },
    },
}

FIELDS: dict[str, Any] = {
    "f:metadata": {"f:labels": {"f:a": {}}},
    "f:spec": {
        "f:replicas": {},
        "f:template": {
            "f:spec": {
                "f:containers": {
                    'k:{"name":"memplane"}': {
                        ".": {},
                        "f:name": {},
                        "f:image": {},
                        "f:args": {},
                        "f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}},
                        "f:resources": {"f:requests": {"f:cpu": {}}},
                        "f:ports": {'k:{"containerPort":8080,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                    }
                },
                "f:volumes": {'k:{"name":"tmp"}': {".": {}, "f:name": {}, "f:emptyDir": {}}},
            }
        },
    },
}


def live() -> dict[str, Any]:
    """What the server stores: defaults filled in, quantities respelled, fields of others beside ours."""
    item = copy.deepcopy(DESIRED)
    item["metadata"] |= {
        "uid": "u",
        "labels": {"a": "1", "somebody": "else"},
        "managedFields": [{"manager": "memplane-operator", "operation": "Apply", "fieldsV1": FIELDS}],
    }
    item["spec"]["progressDeadlineSeconds"] = 600
    pod = item["spec"]["template"]["spec"]
    pod["restartPolicy"] = "Always"
    pod["containers"][0] |= {"imagePullPolicy": "IfNotPresent", "resources": {"requests": {"cpu": "500m"}}}
    pod["containers"][0]["ports"][0]["protocol"] = "TCP"
    return item


def test_server_defaults_and_others_fields_are_not_ours_to_judge() -> None:
    assert in_sync(live(), DESIRED)


def test_an_object_we_never_applied_is_applied() -> None:
    item = live()
    item["metadata"]["managedFields"] = []
    assert not in_sync(item, DESIRED)


def changed(path: list[Any], value: Any, item: dict[str, Any]) -> dict[str, Any]:
    node: Any = item
    for step in path[:-1]:
        node = node[step]
    if value is None:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return item


CONTAINER = ["spec", "template", "spec", "containers", 0]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "replicas"], 5),
        ([*CONTAINER, "image"], "memplane:0"),
        ([*CONTAINER, "args"], ["serve", "--debug"]),
        ([*CONTAINER, "env"], [{"name": "A", "value": "2"}]),
        ([*CONTAINER, "env"], []),
        ([*CONTAINER, "resources", "requests", "cpu"], "1"),
        (["metadata", "labels", "a"], "2"),
        (["spec", "template", "spec", "volumes"], []),
    ],
)
def test_an_edit_of_a_field_of_ours_is_repaired(path: list[Any], value: Any) -> None:
    assert not in_sync(changed(path, value, live()), DESIRED)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "replicas"], None),
        (["metadata", "labels", "b"], "2"),
        ([*CONTAINER, "command"], ["x"]),
        ([*CONTAINER, "env"], [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]),
        ([*CONTAINER, "env"], []),
        (["spec", "paused"], True),
    ],
)
def test_a_new_or_no_longer_desired_field_is_applied(path: list[Any], value: Any) -> None:
    assert not in_sync(live(), changed(path, value, copy.deepcopy(DESIRED)))
