"""The documents that cross a transport: invocation, payload, answer. Source: behaviours 3.5 (H-05, H-07), RT-18.

    invocation  {id, node, target: address, payload, source?: address, execution?: {graphId, runId, nodeId}}
    payload     {kind: "inline", value} or {kind: "reference", reference: {uri}}
    answer      {invocationId, payload}

Pure but for the artifact store, which resolves references.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from memplane.contracts import NodeError, NodeResult
from memplane.runtime.artifacts import ArtifactStore
from memplane.runtime.context import ADDRESS_FIELDS, Execution, WorkerAddress
from memplane.runtime.errors import ArtifactError, TransportError
from memplane.runtime.worker import NODE_ID

EXECUTION_FIELDS = ("graphId", "runId", "nodeId")
RESULT_FIELDS = frozenset({"executionId", "node", "status", "output", "error"})
STATUSES = frozenset({"success", "failed", "cancelled", "timeout"})


class InvalidInvocation(TransportError):  # noqa: N818 - the protocol's own words
    """The document is no invocation of this protocol."""

    def __init__(self) -> None:
        super().__init__("Invalid invocation")


@dataclass(frozen=True, slots=True)
class Invocation:
    """A checked invocation; `payload` is still encoded."""

    id: str
    node: str
    target: WorkerAddress
    payload: Mapping[str, Any]
    source: WorkerAddress | None
    execution: Execution | None

    def as_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {
            "id": self.id,
            "node": self.node,
            "target": self.target.as_wire(),
            "payload": dict(self.payload),
        }
        if self.source is not None:
            wire["source"] = self.source.as_wire()
        if self.execution is not None:
            wire["execution"] = self.execution.as_wire()
        return wire


def parse_invocation(document: object) -> Invocation:
    """Check a decoded document. Raises `InvalidInvocation`. Unknown fields are ignored."""
    if not isinstance(document, Mapping):
        raise InvalidInvocation
    invocation_id, node, payload = document.get("id"), document.get("node"), document.get("payload")
    if not _text(invocation_id) or not isinstance(node, str) or not NODE_ID.fullmatch(node):
        raise InvalidInvocation
    if not is_payload(payload):
        raise InvalidInvocation
    return Invocation(
        id=invocation_id,  # type: ignore[arg-type]
        node=node,
        target=_address(document.get("target")),
        payload=payload,  # type: ignore[arg-type]
        source=_address(document["source"]) if "source" in document else None,
        execution=_execution(document["execution"]) if "execution" in document else None,
    )


def is_payload(document: object) -> bool:
    """Whether it is an inline payload with a value or a reference with a uri."""
    if not isinstance(document, Mapping):
        return False
    if document.get("kind") == "inline":
        return "value" in document
    reference = document.get("reference")
    return document.get("kind") == "reference" and isinstance(reference, Mapping) and _text(reference.get("uri"))


def check_answer(answer: object, invocation_id: str) -> Mapping[str, Any]:
    """The payload of an answer to this invocation. Raises `TransportError`."""
    if not isinstance(answer, Mapping) or not is_payload(answer.get("payload")):
        raise TransportError("Invalid Worker result")
    if answer.get("invocationId") != invocation_id:
        raise TransportError("Worker answered a mismatched invocation")
    payload: Mapping[str, Any] = answer["payload"]
    return payload


def to_json(value: Any) -> str:
    """Compact JSON text of a node's input or output. Raises `TransportError` when it is none."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError):
        raise TransportError("Only JSON values can be sent to another process") from None


async def encode_payload(value: Any, artifacts: ArtifactStore | None, inline_limit_bytes: int) -> dict[str, Any]:
    """A payload: by reference when its JSON is longer than the limit and there is a store, else inline."""
    text = to_json(value)
    if artifacts is not None and len(text.encode("utf-8", "surrogatepass")) > inline_limit_bytes:
        return {"kind": "reference", "reference": dict(await artifacts.put(json.loads(text)))}
    return {"kind": "inline", "value": json.loads(text)}


async def decode_payload(payload: Mapping[str, Any], artifacts: ArtifactStore | None) -> Any:
    """The value of a checked payload. Raises `ArtifactError` for a reference without a store."""
    if payload["kind"] == "inline":
        return payload["value"]
    if artifacts is None:
        raise ArtifactError("An artifact reference needs an artifact store")
    return await artifacts.get(payload["reference"])


def revive(node: str, value: Any) -> Any:
    """A node result that crossed a process becomes a `NodeResult` again, so that callers need not know where it ran.

    Only the exact wire object of this node is taken for one; everything else stays as it is.
    """
    if not isinstance(value, Mapping) or not value.keys() <= RESULT_FIELDS or value.get("node") != node:
        return value
    status, execution_id, error = value.get("status"), value.get("executionId"), value.get("error")
    if status not in STATUSES or not isinstance(execution_id, str) or ("output" in value) == ("error" in value):
        return value
    if "output" in value:
        return NodeResult(execution_id, node, status, value["output"])
    if (
        not isinstance(error, Mapping)
        or not isinstance(error.get("code"), str)
        or not isinstance(error.get("message"), str)
    ):
        return value
    return NodeResult(execution_id, node, status, None, NodeError(error["code"], error["message"]))


def _plain(value: Any) -> Any:
    if isinstance(value, NodeResult):
        return value.as_wire()
    if isinstance(value, MappingProxyType | Mapping):
        return dict(value)
    raise TypeError


def _text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _address(document: object) -> WorkerAddress:
    if not isinstance(document, Mapping) or not all(_text(document.get(field)) for field in ADDRESS_FIELDS):
        raise InvalidInvocation
    return WorkerAddress(*(document[field] for field in ADDRESS_FIELDS))


def _execution(document: object) -> Execution:
    if not isinstance(document, Mapping) or not all(isinstance(document.get(f), str) for f in EXECUTION_FIELDS):
        raise InvalidInvocation
    return Execution(*(document[field] for field in EXECUTION_FIELDS))
