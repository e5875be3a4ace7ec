"""`create_infer_worker` and `create_infer`. Source: behaviours 5.2, I-08, I-09."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.contracts import NodeResult
from memplane.runtime import WorkerContext, WorkerDefinition, define_worker
from memplane.workers.infer.sample import NODE, Infer, ModelProvider, Surroundings


def create_infer(
    *,
    providers: Mapping[str, ModelProvider],
    default_provider: str | None = None,
    timeout_ms: int | None = None,
    generation: Mapping[str, Any] | None = None,
) -> Infer:
    """Model calls without a runtime: `await infer.sample(input, signal=None, timeout_ms=None)`.

    A request names its provider (`model.provider`); else `default_provider`; else the only one registered.
    generation: defaults per field, a request's own fields win. Raises `DefinitionError`.
    """
    return Infer(providers, default_provider=default_provider, timeout_ms=timeout_ms, generation=generation)


def create_infer_worker(
    *,
    providers: Mapping[str, ModelProvider],
    default_provider: str | None = None,
    timeout_ms: int | None = None,
    generation: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
) -> WorkerDefinition:
    """A worker of type INFER with the node INFER.REASONING.SAMPLE.

    Below the options stand the runtime's configuration: `workers.infer.generation`, `runtime.timeoutMs` and the default
    model provider of the environment. A provider with an `origin` needs the sandbox's permission for it.
    """
    infer = create_infer(
        providers=providers, default_provider=default_provider, timeout_ms=timeout_ms, generation=generation
    )

    async def sample(input: Any, ctx: WorkerContext) -> NodeResult[dict[str, Any]]:  # noqa: A002
        return await infer.sample(input, signal=ctx.signal, surroundings=_surroundings(ctx))

    return define_worker(type="INFER", nodes={NODE: sample}, concurrency=concurrency)


def _surroundings(ctx: WorkerContext) -> Surroundings:
    config = ctx.services.get("config")
    if config is None:
        return Surroundings(sandbox=ctx.sandbox, runtime=ctx)
    return Surroundings(
        sandbox=ctx.sandbox,
        generation=config.infer.get("generation"),
        provider=None if config.model is None else config.model["provider"],
        timeout_ms=config.runtime.get("timeoutMs"),
        runtime=ctx,
    )
