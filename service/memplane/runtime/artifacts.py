"""Large payloads travel by reference when both sides share an artifact store. Source: RT-18."""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

from memplane.runtime.errors import ArtifactError


class ArtifactStore(Protocol):
    """Keeps JSON values by reference `{"uri": …}` until they are deleted."""

    async def put(self, value: Any) -> Mapping[str, str]: ...
    async def get(self, reference: Mapping[str, str]) -> Any: ...
    async def delete(self, reference: Mapping[str, str]) -> bool: ...


class InMemoryArtifactStore:
    """Artifacts of one process, as JSON text. Above `max_bytes` (of that text, UTF-8) the oldest go.

    A reference may be given as its bare uri, too.
    """

    def __init__(self, *, max_bytes: int = 256 * 2**20) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
            raise ArtifactError("Artifact store max_bytes must be a positive integer")
        self._max_bytes = max_bytes
        self._bytes = 0
        self._values: OrderedDict[str, bytes] = OrderedDict()

    async def put(self, value: Any) -> Mapping[str, str]:
        """Keep a JSON value; returns its reference."""
        encoded = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        if len(encoded) > self._max_bytes:
            raise ArtifactError(f"Artifact of {len(encoded)} bytes is larger than the store ({self._max_bytes})")
        uri = f"memory:{uuid.uuid4()}"
        self._values[uri] = encoded
        self._bytes += len(encoded)
        while self._bytes > self._max_bytes:
            _, oldest = self._values.popitem(last=False)
            self._bytes -= len(oldest)
        return {"uri": uri}

    async def get(self, reference: Mapping[str, str] | str) -> Any:
        """A fresh copy of the value. Raises `ArtifactError` when it is not, or no longer, here."""
        encoded = self._values.get(_uri(reference))
        if encoded is None:
            raise ArtifactError("Artifact not found")
        return json.loads(encoded)

    async def delete(self, reference: Mapping[str, str] | str) -> bool:
        """True when it was there."""
        encoded = self._values.pop(_uri(reference), None)
        if encoded is None:
            return False
        self._bytes -= len(encoded)
        return True


def _uri(reference: Mapping[str, str] | str) -> str:
    return reference if isinstance(reference, str) else reference["uri"]
