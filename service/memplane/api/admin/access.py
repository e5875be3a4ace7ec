"""Who may use the admin API: `admin` for its own tenant, `platform` for all, the status key for the status alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import Request

from memplane.api.asgi import header_map
from memplane.api.auth.identity import Authenticator, Identity, Role
from memplane.api.auth.status_key import StatusKey
from memplane.api.errors import Forbidden


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Whose rows may be seen. `tenant` None: everybody's."""

    name: str
    tenant: str | None


def access_of(identity: Identity) -> AdminAccess:
    """Raises `Forbidden` without one of the two roles. `platform` outranks `admin`."""
    if Role.PLATFORM in identity.roles:
        return AdminAccess(identity.name, None)
    if Role.ADMIN in identity.roles:
        return AdminAccess(identity.name, identity.tenant)
    raise Forbidden("The admin API needs the role admin or platform")


Dependency = Callable[[Request], Awaitable[AdminAccess]]


def tenant_access(authenticator: Authenticator) -> Dependency:
    """For rows that belong to a tenant."""

    async def check(request: Request) -> AdminAccess:
        return access_of(await authenticator.authenticate(header_map(request.scope)))

    return check


def backend_access(authenticator: Authenticator, status_key: StatusKey | None = None) -> Dependency:
    """For figures of the whole backend: `platform`, or the status key where one is given."""

    async def check(request: Request) -> AdminAccess:
        headers = header_map(request.scope)
        if status_key is not None and status_key.matches(headers):
            return AdminAccess("status-key", None)
        access = access_of(await authenticator.authenticate(headers))
        if access.tenant is not None:
            raise Forbidden("Figures of the whole backend need the role platform")
        return access

    return check
