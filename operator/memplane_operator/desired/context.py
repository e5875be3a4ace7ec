"""The facts beside the spec that desired objects depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memplane_operator.api.crd import GROUP, KIND, VERSION
from memplane_operator.api.spec import Image, MemoryBackendSpec

Manifest = dict[str, Any]
"""A Kubernetes object as the API takes it."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The resource itself."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: MemoryBackendSpec

    def owner(self) -> Manifest:
        """The owner reference that lets the garbage collector remove children."""
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def targets(self) -> tuple[str, ...]:
        """The projection targets that are on, in a fixed order."""
        projections = self.spec.projections
        return tuple(
            name for name, on in (("milvus", projections.milvus), ("neo4j", projections.neo4j)) if on is not None
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """What the operator found out before it builds: its own image, the cluster's abilities, content of Secrets.

    `checksums` maps "SECRET/KEY" to a keyed digest of the value, so that a changed Secret rolls pods and its content
    shows nowhere.
    """

    operator_image: str
    pull_policy: str = "IfNotPresent"
    keda: bool = False
    service_monitors: bool = False
    checksums: Mapping[str, str] = field(default_factory=dict)

    def image(self, image: Image | None) -> str:
        """The image reference of a backend's pods."""
        if image is None:
            return self.operator_image
        return f"{image.repository}@{image.digest}" if image.digest else f"{image.repository}:{image.tag}"
