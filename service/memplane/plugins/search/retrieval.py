"""`retrieval`: the search runs in another process (`memplane retrieval`), reached over the HTTP transport.

For searches that need hardware or capacity of their own. Nothing is retried: a process that does not answer is
SEARCH_UNAVAILABLE, and an aborted signal ends the waiting, not the work over there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, Field, SecretStr, model_validator

from memplane.contracts import CallOptions, NodeResult, Scope, SearchHit, SearchInput
from memplane.errors import PluginError, RetrievalError, SettingsError
from memplane.plugins.registry import Resources
from memplane.plugins.search.delegation import PUBLIC_CODES, WORKER_ADDRESS, target_of
from memplane.retrieval import map_memory_candidates
from memplane.retrieval.bridges.requests import retrieval_input
from memplane.retrieval.degradation import report_degraded
from memplane.retrieval.documents import NODE
from memplane.runtime import HttpTransport, Runtime, create_runtime
from memplane.runtime.errors import DefinitionError
from memplane.settings import Section

TRANSPORT: Final = "retrieval"


class RetrievalSearchSettings(Section):
    """`search.options` of the plugin `retrieval`."""

    url: str = Field(min_length=1, description="origin of the RETRIEVAL process, http(s)://host:port")
    token: SecretStr | None = Field(None, description="the RETRIEVAL process's token")
    token_file: Path | None = Field(None, description="file that holds the token; read at start")
    timeout_seconds: float = Field(10, gt=0, le=600, description="seconds one search may take")
    max_body_bytes: int = Field(16 * 2**20, ge=1024, le=256 * 2**20, description="largest request and answer")

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if (self.token is None) == (self.token_file is None):
            raise ValueError("give token or token_file")
        return self


class RetrievalSearchBackend:
    """Implements `SearchBackend`: a runtime that knows one remote worker."""

    def __init__(self, settings: RetrievalSearchSettings) -> None:
        self._settings = settings
        self._transport: HttpTransport | None = None
        self._runtime: Runtime | None = None

    async def start(self) -> None:
        """Connects with the first search, not now. Raises `SettingsError` for a token or URL that cannot work."""
        if self._runtime is not None:
            return
        settings = self._settings
        try:
            self._transport = HttpTransport(
                id=TRANSPORT,
                url=settings.url,
                token=read_token(settings.token, settings.token_file, "search.options"),
                timeout_ms=round(settings.timeout_seconds * 1000),
                max_body_bytes=settings.max_body_bytes,
            )
        except DefinitionError as error:
            raise SettingsError(f"search.options of 'retrieval': {error}") from None
        self._runtime = create_runtime(host_id="memplane-service", transports=[self._transport])
        self._runtime.register_remote(address=WORKER_ADDRESS, capabilities=[NODE], transport_id=TRANSPORT)

    async def close(self) -> None:
        """Let running searches end, then close the connections. Idempotent."""
        runtime, self._runtime = self._runtime, None
        transport, self._transport = self._transport, None
        if runtime is not None:
            await runtime.close()
        if transport is not None:
            await transport.close()

    def scoped(self, scope: Scope) -> DelegatedSearch:
        return DelegatedSearch(self, scope)

    async def invoke(self, request: dict[str, Any], options: CallOptions) -> NodeResult[Any]:
        """One remote call. Raises SEARCH_UNAVAILABLE when there is no answer, whatever the reason."""
        if self._runtime is None:
            raise PluginError("SEARCH_UNAVAILABLE", "The retrieval service is not connected")
        try:
            result: NodeResult[Any] = await self._runtime.invoke(NODE, request, signal=options.signal)
        except Exception:  # noqa: BLE001 - routing, transport and the other side: none of it is for the caller
            raise _unavailable() from None
        return result


class DelegatedSearch:
    """The search of one tenant and user."""

    def __init__(self, backend: RetrievalSearchBackend, scope: Scope) -> None:
        self._backend = backend
        self._target = target_of(scope)

    async def search(self, input: SearchInput, options: CallOptions) -> Sequence[SearchHit]:  # noqa: A002
        """Hits as the other process found them, `source` added to their metadata.

        Raises `PluginError`: what its search raises (INVALID_INPUT, UNSUPPORTED_STRATEGY, UNSUPPORTED_FILTER), and
        SEARCH_UNAVAILABLE for everything that is no answer.
        """
        result = await self._backend.invoke(retrieval_input(input, self._target), options)
        if result.error is not None:
            if result.error.code in PUBLIC_CODES:
                raise PluginError(result.error.code, result.error.message)
            raise _unavailable()
        return _hits(result.output)


def _hits(output: Any) -> Sequence[SearchHit]:
    try:
        hits = map_memory_candidates(output)
        degraded = [str(target) for target in output.get("metadata", {}).get("degraded", ())]
    except (RetrievalError, KeyError, TypeError, AttributeError):
        # An answer of another protocol than ours is as good as none.
        raise _unavailable() from None
    for target in degraded:
        report_degraded(target)
    return hits


def read_token(token: SecretStr | None, path: Path | None, where: str) -> str:
    """The token itself or the file's content. Raises `SettingsError`."""
    if path is not None:
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise SettingsError(f"{where}.token_file cannot be read") from None
    if token is None:
        raise SettingsError(f"{where}.token or {where}.token_file is required")
    return token.get_secret_value()


def _unavailable() -> PluginError:
    return PluginError("SEARCH_UNAVAILABLE", "The retrieval service does not answer")


class RetrievalSearchPlugin:
    """The entry point `retrieval` of `memplane.search`."""

    settings_model: type[BaseModel] = RetrievalSearchSettings

    def create(self, settings: RetrievalSearchSettings, resources: Resources) -> RetrievalSearchBackend:
        """Needs nothing of the process."""
        return RetrievalSearchBackend(settings)


plugin = RetrievalSearchPlugin()
