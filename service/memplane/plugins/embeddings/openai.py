"""The `openai` provider: embeddings from any endpoint that speaks `POST <base>/embeddings` (case R-33).

One request per call, never repeated here: who calls decides about retries (an outbox worker has its own). The key may
come from a file that is read for every request, so that a rotated Secret takes effect at once. Neither the key nor
anything of the provider's answer gets into an error or a log line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from memplane.contracts import Purpose
from memplane.errors import RetrievalError
from memplane.plugins.embeddings.text import cut, text_of
from memplane.plugins.registry import Resources
from memplane.retrieval.embedding import check_vector
from memplane.retrieval.errors import BACKEND_ERROR, PERMISSION_DENIED, TIMEOUT, invalid_embedding
from memplane.signal import Signal, race

CONTENT_STATUSES = frozenset({400, 413, 422})
"""Answers that blame the request's texts; every other one says something about the provider or our key."""


class NetworkPolicy(Protocol):
    """The part of a sandbox that is asked before a connection is made; it raises to refuse."""

    def check_network(self, origin: str) -> object: ...


class OpenAISettings(BaseModel):
    """Options of the `openai` provider."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str = Field("https://api.openai.com/v1", description="the endpoint is <base_url>/embeddings")
    model: str = Field(min_length=1, description="the model's name at the provider")
    revision: str = Field(
        "1", min_length=1, description="change it when the provider changes the model behind the name"
    )
    dimensions: int = Field(ge=1, le=32_768, description="length of the model's vectors")
    request_dimensions: bool = Field(False, description="ask the provider for this length (models that can shorten)")
    api_key: SecretStr | None = Field(None, description="sent as Bearer token")
    api_key_file: Path | None = Field(None, description="file that holds the key; read for every request")
    timeout_seconds: float = Field(30, gt=0, le=600, description="seconds one request may take")
    max_characters: int = Field(
        8_000, ge=1, le=1_048_576, description="characters of a text that are embedded; the rest is cut"
    )
    document_prefix: str = Field("", description="put before stored texts (models trained with one, such as E5)")
    query_prefix: str = Field("", description="put before queries")
    max_connections: int = Field(16, ge=1, le=1000, description="requests in flight at most")

    @field_validator("base_url")
    @classmethod
    def _http_without_credentials(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise ValueError("must be an http(s) URL without credentials and query")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError("give api_key or api_key_file, not both")
        return self


class OpenAIEmbedding:
    """An `EmbeddingProvider` over HTTP. `transport` replaces the network in tests."""

    def __init__(
        self,
        settings: OpenAISettings,
        *,
        sandbox: NetworkPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.settings = settings
        parts = urlsplit(settings.base_url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._sandbox = sandbox
        self._client = httpx.AsyncClient(
            timeout=settings.timeout_seconds,
            limits=httpx.Limits(max_connections=settings.max_connections),
            transport=transport,
            follow_redirects=False,
        )

    @property
    def model(self) -> str:
        return self.settings.model

    @property
    def revision(self) -> str:
        return self.settings.revision

    @property
    def dimensions(self) -> int:
        return self.settings.dimensions

    async def embed(
        self, contents: Sequence[str], *, purpose: Purpose, signal: Signal | None = None
    ) -> list[Sequence[float]]:
        """One vector per content, in order.

        Raises `RetrievalError`: RETRIEVAL_PERMISSION_DENIED (the sandbox refuses the origin; nothing is sent),
        RETRIEVAL_TIMEOUT, RETRIEVAL_BACKEND_ERROR (not reachable, or an HTTP status), RETRIEVAL_INVALID_EMBEDDING (an
        answer that cannot be used); or the reason of an aborted signal.
        """
        if signal is not None:
            signal.raise_if_aborted()
        self._check_permission()
        if not contents:
            return []
        response = await race(self._post(self._body(contents, purpose)), signal)
        if response.status_code != httpx.codes.OK:
            raise _refused(response.status_code)
        return self._vectors(response, len(contents))

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.aclose()

    def _check_permission(self) -> None:
        if self._sandbox is None:
            return
        try:
            self._sandbox.check_network(self._origin)
        except Exception:  # noqa: BLE001 - a refusal has whatever class the sandbox chose
            raise RetrievalError(PERMISSION_DENIED, "The embedding provider's origin is not permitted") from None

    def _body(self, contents: Sequence[str], purpose: Purpose) -> dict[str, Any]:
        prefix = self.settings.query_prefix if purpose == "query" else self.settings.document_prefix
        # An empty string is refused by common endpoints; a blank is not.
        texts = [prefix + (cut(text_of(content), self.settings.max_characters) or " ") for content in contents]
        body: dict[str, Any] = {"model": self.settings.model, "input": texts, "encoding_format": "float"}
        if self.settings.request_dimensions:
            body["dimensions"] = self.settings.dimensions
        return body

    async def _post(self, body: dict[str, Any]) -> httpx.Response:
        try:
            return await self._client.post(f"{self.settings.base_url}/embeddings", json=body, headers=self._headers())
        except httpx.TimeoutException:
            raise RetrievalError(TIMEOUT, "Embedding provider timed out", outage=True) from None
        except (httpx.HTTPError, httpx.InvalidURL):
            raise RetrievalError(BACKEND_ERROR, "Embedding provider cannot be reached", outage=True) from None

    def _headers(self) -> dict[str, str]:
        key = self._key()
        if not key:
            return {}
        if not key.isascii() or not key.isprintable():
            raise _no_key("Embedding provider's key holds characters that cannot be sent")
        return {"Authorization": f"Bearer {key}"}

    def _key(self) -> str:
        if self.settings.api_key_file is not None:
            try:
                return self.settings.api_key_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError):
                raise _no_key("Embedding provider's key file cannot be read") from None
        return self.settings.api_key.get_secret_value() if self.settings.api_key is not None else ""

    def _vectors(self, response: httpx.Response, count: int) -> list[Sequence[float]]:
        try:
            document = response.json()
        except ValueError:
            raise invalid_embedding("Embedding provider returned no JSON") from None
        rows = document.get("data") if isinstance(document, dict) else None
        if not isinstance(rows, list) or len(rows) != count:
            raise invalid_embedding(f"Embedding provider must return {count} vectors")
        placed: dict[int, Sequence[float]] = {}
        for position, row in enumerate(rows):
            if not isinstance(row, dict):
                raise invalid_embedding("Embedding provider returned a malformed vector")
            index = row.get("index", position)
            if type(index) is not int or not 0 <= index < count or index in placed:
                raise invalid_embedding("Embedding provider returned a wrong or repeated index")
            vector = row.get("embedding")
            check_vector(vector, self.settings.dimensions)
            placed[index] = vector  # type: ignore[assignment]  # just checked
        return [placed[index] for index in range(count)]


def _refused(status: int) -> RetrievalError:
    message = f"Embedding provider returned HTTP {status}"
    return RetrievalError(BACKEND_ERROR, message, outage=status not in CONTENT_STATUSES)


def _no_key(message: str) -> RetrievalError:
    # A Secret that is being rotated: the next call may find it.
    return RetrievalError(BACKEND_ERROR, message, outage=True)


class OpenAIPlugin:
    """The entry point."""

    settings_model = OpenAISettings

    def create(self, settings: OpenAISettings, resources: Resources) -> OpenAIEmbedding:
        return OpenAIEmbedding(settings)


plugin = OpenAIPlugin()
