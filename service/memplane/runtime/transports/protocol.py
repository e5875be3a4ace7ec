"""The HTTP protocol of remote calls, byte for byte. Source: behaviours 3.5 (H-01 … H-08).

    POST /ditto/invoke        Authorization: Bearer <token>     x-ditto-protocol: 1
    200 {"invocationId":"…","payload":{"kind":"inline","value":…}}
    400 | 401 | 404 | 413 | 500   {"error":"…"}

Every answer carries `x-ditto-protocol: 1` and `content-type: application/json`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from memplane.runtime.envelope import to_json
from memplane.runtime.errors import DefinitionError

PATH = "/ditto/invoke"
PROTOCOL_HEADER = "x-ditto-protocol"
PROTOCOL_VERSION = "1"
DEFAULT_MAX_BODY_BYTES = 1_048_576
DEFAULT_TIMEOUT_MS = 30_000
LONGEST_TIMEOUT_MS = 2**31 - 1


def encode(document: Any) -> bytes:
    """Compact JSON in UTF-8; lone surrogates are escaped. Raises `TransportError` when it is no JSON."""
    text = to_json(document)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(json.loads(text), separators=(",", ":")).encode()


def decode(body: bytes) -> Any:
    """A JSON document. Raises `ValueError` on anything else: bad UTF-8, NaN, nesting without end."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def token_digest(token: str) -> bytes:
    """What a token is compared by. Raises `DefinitionError` on a blank one."""
    if not isinstance(token, str) or not token.strip():
        raise DefinitionError("Worker token cannot be empty")
    return hashlib.sha256(f"Bearer {token}".encode()).digest()


def authorized(header: bytes | None, expected: bytes) -> bool:
    """Whether an Authorization header carries the token; takes the same time for every wrong one."""
    return hmac.compare_digest(hashlib.sha256(header or b"").digest(), expected)


def check_size(name: str, value: int) -> int:
    """A limit in bytes ≥ 1. Raises `DefinitionError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DefinitionError(f"{name} must be a positive integer")
    return value


def check_timeout(value: int) -> float:
    """Milliseconds to seconds. Raises `DefinitionError` outside 1..2147483647."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LONGEST_TIMEOUT_MS:
        raise DefinitionError(f"timeout_ms must be an integer in 1..{LONGEST_TIMEOUT_MS}")
    return value / 1000


def check_id(value: str) -> str:
    """A transport's id. Raises `DefinitionError`."""
    if not isinstance(value, str) or not value.strip():
        raise DefinitionError("Transport ID cannot be empty")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
