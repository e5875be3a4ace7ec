"""Mode `jwt`: signed tokens of one issuer for one audience.

Only RS* and ES* are accepted, so a public key can never be used as a shared secret; `exp` is mandatory. The algorithm
must fit the key. The user claim (`sub`) names exactly one user and is taken literally: somebody who registers as `*` is
the user `*`. Several users, or any with `*`, come only from the separate `users_claim`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jwt

from memplane.api.auth.identity import Identity, Role, bearer_token, valid_name
from memplane.api.auth.key_set import KeySet, KeySetFile, KeySetUrl
from memplane.api.errors import Forbidden, Unauthenticated
from memplane.errors import SettingsError
from memplane.settings import JwtSettings

INVALID = "The token is invalid"


class Tokens:
    """Verifies `Authorization: Bearer <JWT>`."""

    def __init__(self, settings: JwtSettings, *, keys: KeySet | None = None) -> None:
        if not settings.issuer or not settings.audience:
            raise SettingsError("auth.mode jwt needs auth.jwt.issuer and auth.jwt.audience")
        self._settings = settings
        self._algorithms = frozenset(settings.algorithms)
        self._keys = keys if keys is not None else _key_set(settings)

    async def start(self) -> None:
        self._keys.load()

    async def close(self) -> None:
        await self._keys.close()

    async def authenticate(self, headers: Mapping[bytes, bytes]) -> Identity:
        token = bearer_token(headers)
        if token is None:
            raise Unauthenticated("A token is required: Authorization: Bearer …")
        return identity_from(await self._claims(token), self._settings)

    async def _claims(self, token: str) -> Mapping[str, Any]:
        try:
            head = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise Unauthenticated(INVALID) from None
        if head.get("alg") not in self._algorithms:
            raise Unauthenticated("The token's signature algorithm is not accepted")
        key = await self._keys.key(str(head.get("kid", "")))
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[str(head["alg"])],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=self._settings.leeway_seconds,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("The token has expired") from None
        except (jwt.PyJWTError, TypeError, ValueError):
            # PyJWT lets TypeError and ValueError through for some malformed claims and keys of another kind.
            raise Unauthenticated(INVALID) from None


def _key_set(settings: JwtSettings) -> KeySet:
    if (settings.jwks_url is None) == (settings.jwks_file is None):
        raise SettingsError("auth.mode jwt needs exactly one of auth.jwt.jwks_url and auth.jwt.jwks_file")
    if settings.jwks_file is not None:
        return KeySetFile(settings.jwks_file)
    assert settings.jwks_url is not None
    return KeySetUrl(settings.jwks_url, cache_seconds=settings.jwks_cache_seconds)


def claim(claims: Mapping[str, Any], name: str) -> Any:  # a JSON value
    """A claim by its literal name, else by its path (`realm_access.roles`); None when absent."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def identity_from(claims: Mapping[str, Any], settings: JwtSettings) -> Identity:
    """The identity that verified claims describe. Raises `Forbidden` that names the claim which is missing or wrong."""
    tenant = claim(claims, settings.tenant_claim)
    if not valid_name(tenant):
        raise Forbidden(f"The token's claim {settings.tenant_claim!r} must name a tenant")
    subject = claim(claims, settings.user_claim)
    name = f"token:{subject}" if valid_name(subject) else "token"
    return Identity(name=name, tenant=tenant, users=_users(claims, settings), roles=_roles(claims, settings))


def _users(claims: Mapping[str, Any], settings: JwtSettings) -> frozenset[str] | None:
    if settings.users_claim is not None:
        users = claim(claims, settings.users_claim)
        if users == "*":
            return None
        if isinstance(users, list) and users and all(valid_name(user) for user in users):
            return frozenset(users)
        if users is not None:
            raise Forbidden(f"The token's claim {settings.users_claim!r} must be a list of users or '*'")
    user = claim(claims, settings.user_claim)
    if not valid_name(user):
        raise Forbidden(f"The token's claim {settings.user_claim!r} must name a user")
    return frozenset((user,))


def _roles(claims: Mapping[str, Any], settings: JwtSettings) -> frozenset[Role]:
    """Known roles of the claim; an issuer's other roles are none of ours and are ignored."""
    given = claim(claims, settings.roles_claim)
    names = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
    known = {role.value: role for role in Role}
    return frozenset(known[name] for name in names if isinstance(name, str) and name in known)
