"""The file of hashed API keys: its format, and making new keys.

    keys:
      - id: 4f1c0a9e27b3
        name: my agent
        sha256: 9b74c9897bac770ffc029102a200c5de…   # of the whole key
        tenant: default
        users: ["alice", "bob"]                     # or "*"
        roles: [reader, writer]
        expires_at: 2027-01-01T00:00:00Z            # optional

A key is `mp_<id>_<secret>` with 256 random bits. Such keys cannot be guessed from their hash, so one SHA-256 protects
the file as well as a slow password hash would and costs a request microseconds instead of tens of milliseconds. Choose
no keys by hand.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from memplane.api.auth.identity import MAX_NAME, NAME_RULE, Identity, Role, valid_name
from memplane.errors import SettingsError

KEY_PREFIX = "mp_"


def _checked_name(name: str) -> str:
    if not valid_name(name):
        raise ValueError(f"must be {NAME_RULE}")
    return name


Name = Annotated[str, AfterValidator(_checked_name)]


class KeyEntry(BaseModel):
    """One key of the file; only its hash is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[0-9a-zA-Z-]{1,64}$", description="shown in logs and lists")
    name: str = Field("", max_length=MAX_NAME, description="what the key is for")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the whole key, in hex")
    tenant: Name
    users: Literal["*"] | list[Name] = Field(description='the users whose memories it may touch, or "*"', min_length=1)
    roles: list[Role] = Field(min_length=1)
    expires_at: AwareDatetime | None = None

    def identity(self) -> Identity:
        users = None if self.users == "*" else frozenset(self.users)
        return Identity(name=f"key:{self.id}", tenant=self.tenant, users=users, roles=frozenset(self.roles))


class KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: list[KeyEntry] = []


def parse_key_file(text: str) -> KeyFile:
    """Parse YAML or JSON. Raises `SettingsError` that names the wrong entry by its place."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError:
        raise SettingsError("the file of API keys is not valid YAML") from None
    try:
        parsed = KeyFile.model_validate(document if document is not None else {})
    except ValidationError as error:
        where = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise SettingsError(f"the file of API keys is wrong: {where}") from None
    ids = [entry.id for entry in parsed.keys]
    if len(set(ids)) != len(ids) or len({entry.sha256 for entry in parsed.keys}) != len(ids):
        raise SettingsError("the file of API keys holds an id or a hash twice")
    return parsed


def render_key_file(file: KeyFile) -> str:
    """The file's text, as `parse_key_file` reads it."""
    return yaml.safe_dump(file.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)


def hash_key(key: str) -> str:
    """SHA-256 of a key, in hex."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def new_key(
    *,
    tenant: str,
    users: Literal["*"] | list[str],
    roles: list[Role],
    name: str = "",
    expires_at: datetime | None = None,
) -> tuple[str, KeyEntry]:
    """Make a key with 256 random bits: the key itself, shown once, and its entry for the file."""
    identifier = secrets.token_hex(6)
    key = f"{KEY_PREFIX}{identifier}_{secrets.token_urlsafe(32)}"
    try:
        entry = KeyEntry(
            id=identifier,
            name=name,
            sha256=hash_key(key),
            tenant=tenant,
            users=users,
            roles=roles,
            expires_at=expires_at.astimezone(UTC) if expires_at else None,
        )
    except ValidationError as error:
        one = error.errors()[0]
        raise SettingsError(f"{'.'.join(map(str, one['loc']))}: {one['msg']}") from None
    return key, entry
