"""What a credential says about its bearer: one tenant, allowed users, roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

MAX_NAME = 200
"""Longest tenant or user name, in characters."""
MAX_NAME_BYTES = 256
"""Longest tenant or user name, in bytes of UTF-8: what the stores can index."""
NAME_RULE = f"1 to {MAX_NAME} printable characters, at most {MAX_NAME_BYTES} bytes of UTF-8"


class Role(StrEnum):
    """Roles are independent of each other; a credential lists each one that it has."""

    READER = "reader"
    """GET, QUERY and SEARCH."""
    WRITER = "writer"
    """WRITE, UPDATE and DELETE."""
    ADMIN = "admin"
    """The admin API, for the credential's own tenant."""
    PLATFORM = "platform"
    """The admin API, for all tenants."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A bearer. `users` is None for any user (`*` in files and tokens). `name` goes to logs."""

    name: str
    tenant: str
    users: frozenset[str] | None
    roles: frozenset[Role]


class Authenticator(Protocol):
    """One way to tell who calls. `headers` are the request's, names in lower case, last value wins."""

    async def start(self) -> None:
        """Read what is needed. Raises `SettingsError` when the settings can never work."""
        ...

    async def close(self) -> None: ...

    async def authenticate(self, headers: Mapping[bytes, bytes]) -> Identity:
        """The bearer of this request. Raises `Unauthenticated`; `Forbidden` for a host that is not allowed."""
        ...


def valid_name(name: object) -> bool:
    """A tenant or user name by `NAME_RULE`: no control characters, no surrogates."""
    # What is printable holds no surrogates, so it can be encoded.
    return (
        isinstance(name, str)
        and 0 < len(name) <= MAX_NAME
        and name.isprintable()
        and len(name.encode()) <= MAX_NAME_BYTES
    )


def bearer_token(headers: Mapping[bytes, bytes]) -> str | None:
    """The token of `Authorization: Bearer …`, None without such a header or when it is not ASCII."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    try:
        return token.strip().decode("ascii") or None
    except UnicodeDecodeError:
        return None
