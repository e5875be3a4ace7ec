"""The runtime: node workers, graphs, loops, checkpoints and transports. Source: seed `000`, design section 3."""

from memplane.runtime.context import Execution, WorkerAddress, WorkerContext
from memplane.runtime.errors import (
    ArtifactError,
    CheckpointError,
    DefinitionError,
    LoopLimitReached,
    NoWorkerAvailable,
    PermissionDenied,
    RuntimeClosed,
    TransportError,
    TransportTimeout,
)
from memplane.runtime.worker import Handler, NodeDefinition, WorkerDefinition, define_worker

__all__ = [
    "ArtifactError",
    "CheckpointError",
    "DefinitionError",
    "Execution",
    "Handler",
    "LoopLimitReached",
    "NoWorkerAvailable",
    "NodeDefinition",
    "PermissionDenied",
    "RuntimeClosed",
    "TransportError",
    "TransportTimeout",
    "WorkerAddress",
    "WorkerContext",
    "WorkerDefinition",
    "define_worker",
]
