"""INFER.REASONING.SAMPLE: one call of one model within a deadline. Source: behaviours I-01 … I-09.

Everything becomes a NodeResult. A departure from the catalogue: an unclassified exception of a provider gives a fixed
message (design, departures).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from memplane.contracts import CallOptions, NodeError, NodeInvoker, NodeResult, Status
from memplane.errors import PluginError
from memplane.runtime.errors import DefinitionError, PermissionDenied
from memplane.runtime.sandbox import Sandbox
from memplane.runtime.waiting import linked
from memplane.signal import Signal
from memplane.workers.infer.input import InvalidSample, check_generation, prepare
from memplane.workers.infer.output import check_output

logger = logging.getLogger(__name__)

NODE = "INFER.REASONING.SAMPLE"
DEFAULT_TIMEOUT_MS = 30_000
LONGEST_TIMEOUT_MS = 2**31 - 1
GRACE_SECONDS = 0.05
"""How long a provider may take to end after its call was given up; a deaf one is left to itself then."""


class ModelProvider(Protocol):
    """Takes `{messages, model, generation?, actions?, metadata?}`, answers as `output.py` says.

    A provider that needs the network has an attribute `origin` (scheme://host:port): the sandbox is asked for it first.
    Public failures are raised as `PluginError`.
    """

    async def invoke(self, input: Mapping[str, Any], options: CallOptions) -> Mapping[str, Any]: ...  # noqa: A002


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a runtime adds to a call: its sandbox, its configuration's defaults, and itself."""

    sandbox: Sandbox | None = None
    generation: Mapping[str, Any] | None = None
    provider: str | None = None
    timeout_ms: int | None = None
    runtime: NodeInvoker | None = None


class Failure(Exception):  # noqa: N818 - becomes a result
    """Ends a call with this status and error."""

    def __init__(self, status: Status, code: str, message: str) -> None:
        super().__init__(code)
        self.status, self.error = status, NodeError(code, message)


class Infer:
    """Model calls for direct use; see `create_infer`."""

    def __init__(
        self,
        providers: Mapping[str, ModelProvider],
        *,
        default_provider: str | None,
        timeout_ms: int | None,
        generation: Mapping[str, Any] | None,
    ) -> None:
        self._providers = dict(providers)
        if default_provider is not None and default_provider not in self._providers:
            raise DefinitionError("default_provider must name one of the providers")
        if timeout_ms is not None and not _is_timeout(timeout_ms):
            raise DefinitionError(f"timeout_ms must be an integer in 1..{LONGEST_TIMEOUT_MS}")
        self._default_provider, self._timeout_ms = default_provider, timeout_ms
        self._generation = check_generation(generation)

    async def sample(
        self,
        input: Any,  # noqa: A002
        *,
        signal: Signal | None = None,
        timeout_ms: int | None = None,
        surroundings: Surroundings | None = None,
    ) -> NodeResult[dict[str, Any]]:
        """One sample. Never raises for the input, the provider or the time; status tells.

        Status: success; failed; timeout (code TIMEOUT) when the deadline passed; cancelled (code CANCELLED) when the
        signal aborted. finishReason `length` is a success, `cancelled` and `error` are not.
        """
        execution_id = str(uuid.uuid4())
        try:
            output = await self._sample(input, signal, timeout_ms, surroundings or Surroundings())
        except Failure as failure:
            return NodeResult(execution_id, NODE, failure.status, None, failure.error)
        return NodeResult(execution_id, NODE, "success", output)

    async def _sample(
        self,
        input: Any,  # noqa: A002
        signal: Signal | None,
        timeout_ms: int | None,
        around: Surroundings,
    ) -> dict[str, Any]:
        if signal is not None and signal.aborted:
            raise _cancelled()
        try:
            request = prepare(input, self._generation, around.generation or {})
        except InvalidSample as problem:
            raise Failure("failed", "INVALID_INPUT", str(problem)) from None
        limit = next(
            (t for t in (timeout_ms, self._timeout_ms, around.timeout_ms) if t is not None), DEFAULT_TIMEOUT_MS
        )
        if not _is_timeout(limit):
            message = f"timeoutMs must be an integer in 1..{LONGEST_TIMEOUT_MS}"
            raise Failure("failed", "INVALID_INPUT", message)
        provider = self._provider(request, around)
        self._check_network(provider, around)
        answer = await self._call(provider, request, signal, limit / 1000, around.runtime)
        try:
            output = check_output(answer, request)
        except PluginError as error:
            raise Failure("failed", error.code, error.safe_message) from None
        if output["finishReason"] == "cancelled":
            raise _cancelled()
        if output["finishReason"] == "error":
            raise Failure("failed", "MODEL_ERROR", "Model reported an error")
        return output

    def _provider(self, request: Mapping[str, Any], around: Surroundings) -> ModelProvider:
        name = request["model"].get("provider") or self._default_provider or around.provider
        if name is None and len(self._providers) == 1:
            (name,) = self._providers
        provider = self._providers.get(name) if name is not None else None
        if provider is None:
            raise Failure("failed", "PROVIDER_NOT_FOUND", "Model provider is not registered")
        return provider

    def _check_network(self, provider: ModelProvider, around: Surroundings) -> None:
        origin = getattr(provider, "origin", None)
        if around.sandbox is None or origin is None:
            return
        try:
            around.sandbox.check_network(origin)
        except PermissionDenied as refusal:
            raise Failure("failed", "EXECUTION_FAILED", str(refusal)) from None

    async def _call(
        self,
        provider: ModelProvider,
        request: Mapping[str, Any],
        signal: Signal | None,
        seconds: float,
        runtime: NodeInvoker | None,
    ) -> Any:
        deadline = Signal.timeout(seconds)
        try:
            # A runtime's caller sees the very same signal; the deadline joins it only on the way to the provider.
            with linked(signal, deadline) as both:
                assert both is not None
                return await _until_aborted(provider, request, CallOptions(signal=both, runtime=runtime), both)
        except _Stopped:
            if signal is not None and signal.aborted:
                raise _cancelled() from None
            raise Failure("timeout", "TIMEOUT", f"Model call took longer than {seconds:g} s") from None
        except PluginError as error:
            raise Failure("failed", error.code, error.safe_message) from None
        except Exception as error:  # noqa: BLE001 - a provider may raise anything, and its text may hold secrets
            logger.warning("model provider failed: %s", type(error).__name__)
            raise Failure("failed", "EXECUTION_FAILED", "Model provider failed") from None
        finally:
            deadline.abort()  # ends its timer


class _Stopped(Exception):  # noqa: N818 - control flow
    """The signal aborted before the provider answered, whatever it did then."""


async def _until_aborted(
    provider: ModelProvider, request: Mapping[str, Any], options: CallOptions, signal: Signal
) -> Any:
    """The provider's answer, unless the signal aborts first. A deaf provider is abandoned, not waited for."""
    task = asyncio.ensure_future(provider.invoke(request, options))
    wake = asyncio.ensure_future(signal.wait())
    try:
        await asyncio.wait((task, wake), return_when=asyncio.FIRST_COMPLETED)
        if signal.aborted:
            await _abandon(task)
            raise _Stopped
        return task.result()
    except asyncio.CancelledError:
        await _abandon(task)
        raise
    finally:
        wake.cancel()


async def _abandon(task: asyncio.Future[Any]) -> None:
    task.cancel()
    task.add_done_callback(_look_at)
    await asyncio.wait({task}, timeout=GRACE_SECONDS)


def _look_at(task: asyncio.Future[Any]) -> None:
    """Nobody waits for this outcome any more; asyncio is told that it was seen."""
    if not task.cancelled():
        task.exception()


def _cancelled() -> Failure:
    return Failure("cancelled", "CANCELLED", "Model call was cancelled")


def _is_timeout(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LONGEST_TIMEOUT_MS
