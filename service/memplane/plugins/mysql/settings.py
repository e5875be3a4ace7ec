"""Settings of the store `mysql`, and its DSN."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, model_validator

from memplane.errors import SettingsError
from memplane.settings import Section

DEFAULT_PORT: Final = 3306


class MysqlSettings(Section):
    """`store.options` of the plugin `mysql`."""

    dsn: SecretStr | None = Field(None, description="mysql://user:password@host:port/database")
    dsn_file: Path | None = Field(None, description="file that holds the URL; read again for every new connection")
    pool_min: int = Field(1, ge=0, le=1000, description="connections opened at start")
    pool_max: int = Field(10, ge=1, le=1000, description="connections at most")
    connect_timeout: float = Field(10, gt=0, le=300, description="seconds to wait for a connection")
    statement_timeout: float = Field(30, gt=0, le=3600, description="seconds one statement may take")
    tls: bool = Field(False, description="encrypt, and check the server's certificate and name")
    tls_ca_file: Path | None = Field(None, description="certificate authorities to trust instead of the system's")
    sweep_seconds: float = Field(60, gt=0, le=86400, description="how often expired memories are removed")
    require_expected_version: bool | None = Field(
        None, description="UPDATE and DELETE must name the version they expect; by default as in the store settings"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.dsn is None) == (self.dsn_file is None):
            raise ValueError("give dsn or dsn_file")
        if self.pool_min > self.pool_max:
            raise ValueError("pool_min must not exceed pool_max")
        if self.dsn is not None:
            try:
                parse_dsn(self.dsn.get_secret_value())
            except SettingsError as error:
                raise ValueError(str(error)) from None
        return self


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect and as whom. Never shown: it holds the password."""

    host: str
    port: int
    user: str
    password: str
    database: str


def read_address(settings: MysqlSettings) -> Address:
    """The present address. Raises `SettingsError` that names the setting and repeats no value."""
    if settings.dsn is not None:
        return parse_dsn(settings.dsn.get_secret_value())
    assert settings.dsn_file is not None
    try:
        text = settings.dsn_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise SettingsError("store.options.dsn_file of 'mysql' cannot be read") from None
    return parse_dsn(text)


def parse_dsn(text: str) -> Address:
    """The parts of `mysql://user:password@host:port/database` (also `mariadb://`). Raises `SettingsError`."""
    wrong = SettingsError("the DSN must look like mysql://user:password@host:port/database")
    try:
        parts = urlsplit(text)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise wrong from None
    database = unquote(parts.path[1:])
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or not parts.username or not database:
        raise wrong
    if "/" in database or parts.query or parts.fragment:
        raise wrong
    return Address(parts.hostname, port, unquote(parts.username), unquote(parts.password or ""), database)
