"""The runtime: node workers, graphs, loops, checkpoints and transports. Source: seed `000`, design section 3."""

from memplane.runtime.artifacts import ArtifactStore, InMemoryArtifactStore
from memplane.runtime.checkpoint import checkpoint_state, restore_state
from memplane.runtime.config import RuntimeConfig, load_runtime_config, load_runtime_config_file
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
from memplane.runtime.events import EventFabric, EventFailure, LocalEventFabric
from memplane.runtime.graph import Graph, GraphNode, graph
from memplane.runtime.loop import GraphStep, PlanLoop, StateLoop, graph_step, loop
from memplane.runtime.registry import WorkerHandle
from memplane.runtime.runtime import Runtime, Transport, create_runtime
from memplane.runtime.sandbox import Sandbox
from memplane.runtime.transports import (
    HttpServer,
    HttpTransport,
    InvokeApp,
    IpcServer,
    IpcTransport,
    create_http_app,
    serve_http,
    serve_ipc,
)
from memplane.runtime.worker import Handler, NodeDefinition, WorkerDefinition, define_worker

__all__ = [
    "ArtifactError",
    "ArtifactStore",
    "CheckpointError",
    "DefinitionError",
    "EventFabric",
    "EventFailure",
    "Execution",
    "Graph",
    "GraphNode",
    "GraphStep",
    "Handler",
    "HttpServer",
    "HttpTransport",
    "InMemoryArtifactStore",
    "InvokeApp",
    "IpcServer",
    "IpcTransport",
    "LocalEventFabric",
    "LoopLimitReached",
    "NoWorkerAvailable",
    "NodeDefinition",
    "PermissionDenied",
    "PlanLoop",
    "Runtime",
    "RuntimeClosed",
    "RuntimeConfig",
    "Sandbox",
    "StateLoop",
    "Transport",
    "TransportError",
    "TransportTimeout",
    "WorkerAddress",
    "WorkerContext",
    "WorkerDefinition",
    "WorkerHandle",
    "checkpoint_state",
    "create_http_app",
    "create_runtime",
    "define_worker",
    "graph",
    "graph_step",
    "load_runtime_config",
    "load_runtime_config_file",
    "loop",
    "restore_state",
    "serve_http",
    "serve_ipc",
]
