"""Mode `none`: every caller on this machine is trusted, and nobody else can connect.

A web page in a browser on this machine is somebody else. It can reach loopback ports, so requests must name a loopback
host (a page that rebinds its own name to 127.0.0.1 cannot) and node calls must be `application/json` (which a page
cannot send across origins without being asked first; see `nodes.py`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from memplane.api.auth.identity import Identity, Role
from memplane.api.errors import Forbidden
from memplane.errors import SettingsError


def is_loopback(host: str) -> bool:
    """True for `localhost`, 127.0.0.0/8 and ::1."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_name(header: bytes) -> str:
    """The host of a Host header, without its port."""
    text = header.decode("latin-1").strip()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0]


class Loopback:
    """Everybody on loopback is `local`, of one tenant, any user, with all roles."""

    def __init__(self, *, bind: str, tenant: str) -> None:
        if not is_loopback(bind):
            raise SettingsError(
                f"auth.mode none trusts every caller, so service.host must be a loopback address, not {bind}"
            )
        self._identity = Identity(name="local", tenant=tenant, users=None, roles=frozenset(Role))

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def authenticate(self, headers: Mapping[bytes, bytes]) -> Identity:
        host = headers.get(b"host")
        if host is None or not is_loopback(host_name(host)):
            raise Forbidden("Without authentication only loopback host names are served")
        return self._identity
