"""Where a target is: a URL from the settings or from a mounted file, with the credentials that may stand in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from memplane.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Address:
    """A URL without credentials, and the credentials that stood in it (empty: none did)."""

    uri: str
    user: str = ""
    password: str = ""


def split_credentials(url: str) -> Address:
    """`scheme://user:password@host:port/…` → the URL without `user:password@`, and both, percent-decoded."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return Address(url)
    host = parts.netloc.rpartition("@")[2]
    return Address(
        urlunsplit(parts._replace(netloc=host)), unquote(parts.username or ""), unquote(parts.password or "")
    )


def read_address(target: str, uri: str | None, uri_file: Path | None) -> Address:
    """The address from `uri_file`, which is read on every call so that a rotated Secret takes effect, or from `uri`."""
    if uri_file is not None:
        try:
            return split_credentials(uri_file.read_text(encoding="utf-8").strip())
        except OSError as error:
            raise SettingsError(f"{target}.uri_file cannot be read: {error.strerror}") from None
        except ValueError:
            raise SettingsError(f"{target}.uri_file does not hold a URL") from None
    if uri is None:
        raise SettingsError(f"{target}.uri or {target}.uri_file is required")
    return Address(uri) if uri.endswith(".db") else split_credentials(uri)
