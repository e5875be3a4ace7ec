"""Names and labels of a backend's objects (design section 1)."""

from __future__ import annotations

from memplane_operator.desired.context import Backend, Manifest

BACKEND_LABEL = "memplane.dev/backend"
COMPONENT_LABEL = "memplane.dev/component"
CHECKSUM_ANNOTATION = "memplane.dev/inputs"


def selector(backend: Backend, component: str) -> dict[str, str]:
    """Labels that select the pods of one component; never changed after creation."""
    return {BACKEND_LABEL: backend.name, COMPONENT_LABEL: component}


def labels(backend: Backend, component: str) -> dict[str, str]:
    """All labels of one component's objects."""
    return {
        "app.kubernetes.io/name": "memplane",
        "app.kubernetes.io/instance": backend.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "memplane-operator",
        **selector(backend, component),
    }


def metadata(backend: Backend, name: str, component: str) -> Manifest:
    """Metadata of a child: namespaced, labelled, owned."""
    return {
        "name": name,
        "namespace": backend.namespace,
        "labels": labels(backend, component),
        "ownerReferences": [backend.owner()],
    }
