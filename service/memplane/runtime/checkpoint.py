"""State that outlives a process: a JSON snapshot bound to its scope and version by a digest. Source: K-01 … K-05.

    {format: 1, scope, version, state, digest}    digest = SHA-256 of the canonical JSON of {scope, version, state}

Graph checkpoints keep in `state`: `structure` (digest of node ids, types and dependencies), `input` (digest), `outputs`
by node id, `uncertain` (nodes that failed: what they did outside is unknown, so such a checkpoint refuses to resume).
"""

from __future__ import annotations

import hmac
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from memplane.runtime.canonical import NotJson, digest, snapshot
from memplane.runtime.envelope import revive, to_json
from memplane.runtime.errors import CheckpointError, DefinitionError, TransportError
from memplane.runtime.graph import Graph

FORMAT = 1

Save: TypeAlias = Callable[[dict[str, Any]], Awaitable[None] | None]
"""Stores a checkpoint document; awaited. What it raises ends the run."""


def checkpoint_state(scope: str, version: str, state: Any) -> dict[str, Any]:
    """A checkpoint document of a JSON state. Raises `CheckpointError` on anything that is no finite, acyclic JSON."""
    _name("scope", scope)
    _name("version", version)
    try:
        copy = snapshot(state)
        return {
            "format": FORMAT,
            "scope": scope,
            "version": version,
            "state": copy,
            "digest": _digest(scope, version, copy),
        }
    except NotJson as error:
        raise CheckpointError(f"Checkpoint state must be JSON: {error}") from None


def restore_state(saved: Mapping[str, Any], scope: str, version: str) -> Any:
    """A copy of the saved state. Raises `CheckpointError` when altered, or of another scope or version."""
    if not isinstance(saved, Mapping) or saved.get("format") != FORMAT or "state" not in saved:
        raise CheckpointError("Checkpoint format is not supported")
    if saved.get("scope") != scope or saved.get("version") != version:
        raise CheckpointError("Checkpoint is incompatible with this scope or version")
    try:
        copy = snapshot(saved["state"])
        expected = _digest(scope, version, copy)
    except NotJson as error:
        raise CheckpointError(f"Checkpoint state must be JSON: {error}") from None
    stored = saved.get("digest")
    if not isinstance(stored, str) or not hmac.compare_digest(stored.encode(), expected.encode()):
        raise CheckpointError("Checkpoint digest does not match its state")
    return copy


def structure_digest(plan: Graph) -> str:
    """Digest of what a graph's checkpoint depends on beside the caller's version: node ids, types, dependencies.

    Code of bind functions cannot be compared in Python: a change there needs a new version from the caller.
    """
    return digest([[node.id, node.type, list(node.dependencies)] for node in plan.nodes])


@dataclass(slots=True)
class GraphCheckpoint:
    """Saving and resuming one graph run. `restored` holds the outputs of nodes that need no second run."""

    plan: Graph
    version: str
    save: Save
    input_digest: str
    structure: str
    resumed: bool = False
    restored: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Graph, input: Any, options: Mapping[str, Any]) -> GraphCheckpoint:  # noqa: A002
        """Check `{version, save, resume?}` and the resumed document. Raises before any effect."""
        version, save = check_options(options, {"version", "save", "resume"})
        checkpoint = cls(plan, version, save, _digest_of_input(input), structure_digest(plan))
        if options.get("resume") is not None:
            checkpoint._restore(options["resume"])
        return checkpoint

    async def store(self, outputs: Mapping[str, Any], uncertain: list[str]) -> None:
        """Save what is complete. Called with no node in flight."""
        try:
            plain = {name: plain_json(value) for name, value in outputs.items()}
        except TransportError:
            raise CheckpointError("Checkpointed Node outputs must be JSON") from None
        state = {"structure": self.structure, "input": self.input_digest, "outputs": plain, "uncertain": uncertain}
        await call(self.save, checkpoint_state(self.plan.id, self.version, state))

    def _restore(self, saved: Any) -> None:
        state = restore_state(saved, self.plan.id, self.version)
        if not isinstance(state, dict) or state.get("structure") != self.structure:
            raise CheckpointError("Graph checkpoint is incompatible with this graph")
        if state.get("input") != self.input_digest:
            raise CheckpointError("Graph checkpoint is incompatible with this input")
        if state.get("uncertain"):
            raise CheckpointError(f"Graph checkpoint has uncertain Nodes: {', '.join(state['uncertain'])}")
        types = {node.id: node.type for node in self.plan.nodes}
        self.restored = {name: revive(types[name], value) for name, value in state["outputs"].items()}
        self.resumed = True


def check_options(options: Mapping[str, Any], known: set[str]) -> tuple[str, Save]:
    """`version` and `save` of checkpoint options. Raises `DefinitionError`."""
    if not isinstance(options, Mapping):
        raise DefinitionError("Checkpoint options must be a mapping")
    if unknown := options.keys() - known:
        raise DefinitionError(f"Unknown checkpoint option: {min(unknown)}")
    version, save = options.get("version"), options.get("save")
    if not isinstance(version, str) or not version:
        raise DefinitionError("Checkpoint version must be a nonempty string")
    if not callable(save):
        raise DefinitionError("Checkpoint save must be a function")
    return version, save


async def call(callback: Callable[..., Any], *arguments: Any) -> Any:
    """Call a plain or async callback."""
    outcome = callback(*arguments)
    return await outcome if inspect.isawaitable(outcome) else outcome


def plain_json(value: Any) -> Any:
    """The value as plain `dict`, `list` …, node results as their wire objects. Raises `TransportError`."""
    return json.loads(to_json(value))


def _digest(scope: str, version: str, state: Any) -> str:
    return digest({"scope": scope, "version": version, "state": state})


def _digest_of_input(input: Any) -> str:  # noqa: A002
    try:
        return digest(input)
    except NotJson as error:
        raise CheckpointError(f"The input of a checkpointed graph must be JSON: {error}") from None


def _name(what: str, value: str) -> None:
    if not isinstance(value, str) or not value:
        raise CheckpointError(f"Checkpoint {what} must be a nonempty string")
