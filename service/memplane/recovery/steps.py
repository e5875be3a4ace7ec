"""The steps that flows are composed of: each is a graph on the caller's runtime, nothing else touches the world."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from memplane.recovery.documents import Job, Kind, normalised_order
from memplane.recovery.errors import RecoveryError
from memplane.runtime import Graph, graph
from memplane.runtime.canonical import snapshot
from memplane.signal import Signal

JSON = Any


class FlowRuntime(Protocol):
    """The part of a runtime that flows use."""

    async def run(self, plan: Graph, input: Any, *, signal: Signal | None = None) -> Mapping[str, Any]: ...  # noqa: A002
    async def loop(self, definition: Any, state: Any, *, signal: Signal | None = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class Flow:
    """One run of an entry: where it runs, for which task, with which model."""

    runtime: FlowRuntime
    id: str
    model: Mapping[str, Any]
    signal: Signal | None

    async def tool(self, name: str, *, signal: Signal | None = None, **arguments: JSON) -> dict[str, Any]:
        """One tool call; its ExternalResult. What the tool raises comes through."""
        call = {"id": f"{self.id}-{name}", "name": name, "arguments": {"id": self.id, **arguments}}
        plan = graph(f"recovery-{name}").node("call", "INTERACTION.ACT.TOOL", [], lambda value: {"call": value})
        outputs = await self.runtime.run(plan, call, signal=signal or self.signal)
        result: dict[str, Any] = snapshot(outputs["call"])
        return result

    async def done(self, name: str, **arguments: JSON) -> Any:
        """A tool call that must succeed; its content."""
        return content_of(await self.tool(name, **arguments))

    async def job(self) -> Job:
        job: Job = await self.done("recovery_read")
        return job

    async def sample(self, messages: list[dict[str, Any]]) -> str:
        """One model call; the text of a finished answer. Raises `RecoveryError` for anything else."""
        plan = graph("recovery-sample").node("sample", "INFER.REASONING.SAMPLE", [], lambda value: value)
        outputs = await self.runtime.run(plan, {"messages": messages, "model": dict(self.model)}, signal=self.signal)
        return model_text(outputs["sample"])


def content_of(result: Mapping[str, Any]) -> Any:
    """The content of a successful tool result. Raises `RecoveryError` with the code of any other."""
    if result["status"] != "success":
        raise RecoveryError(f"Tool call failed: {code_of(result)}")
    return result["structuredContent"]


def code_of(result: Mapping[str, Any]) -> str:
    """The error code of a tool result that is not a success."""
    return str((result.get("error") or {}).get("code") or "TOOL_FAILED")


def model_text(result: Any) -> str:
    """The text of a model's finished answer. Raises `RecoveryError`: failed, cut off, no text."""
    wire = result.as_wire() if hasattr(result, "as_wire") else result
    output = wire.get("output") if isinstance(wire, Mapping) else None
    if not isinstance(output, Mapping) or wire.get("status") != "success" or output.get("finishReason") != "stop":
        raise RecoveryError("The model gave no finished answer")
    message = output.get("message")
    content = message.get("content") if isinstance(message, Mapping) and message.get("role") == "assistant" else None
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "".join(str(part["text"]) for part in content)
    raise RecoveryError("The model gave no text")


_FENCE = re.compile(r"^\s*```[a-zA-Z]*\s*\n(.*?)\n?\s*```\s*$", re.DOTALL)


def parsed_json(text: str) -> Any:
    """The JSON of a model's answer, code fences tolerated. Raises `RecoveryError`."""
    fenced = _FENCE.match(text)
    try:
        return json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        raise RecoveryError("The model's answer is not JSON") from None


EXTRACT = (
    "Extract the fulfilment order from the request. Answer with one JSON object and nothing else: "
    '{"sku": string, "quantity": integer from 1 to 100, "address": string}.'
)


async def extract(flow: Flow, text: str, source_hash: str) -> Job:
    """CONTEXT.LOAD → INFER.REASONING.SAMPLE → recovery_prepare: the checkpoint `prepared`."""
    plan = graph("recovery-load").node("load", "CONTEXT.LOAD", [], lambda value: value)
    item = {"id": f"{flow.id}-request", "content": text}
    context = snapshot((await flow.runtime.run(plan, {"sources": [item]}, signal=flow.signal))["load"])
    answer = await flow.sample([{"role": "system", "content": EXTRACT}, {"role": "user", "content": text}])
    order = normalised_order(parsed_json(answer))
    job: Job = await flow.done("recovery_prepare", order=order, context=context, sourceHash=source_hash)
    return job


async def look_up(flow: Flow, kind: Kind) -> dict[str, Any]:
    """What the service knows of an operation: a tool result."""
    return await flow.tool("recovery_operation", kind=kind, apply=False)


async def submit(flow: Flow, kind: Kind) -> dict[str, Any]:
    """Submit an operation under its stable key: a tool result."""
    return await flow.tool("recovery_operation", kind=kind, apply=True)
