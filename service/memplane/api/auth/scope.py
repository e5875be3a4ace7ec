"""From an identity to the scope of every statement (design section 4). Nothing else decides a scope."""

from __future__ import annotations

from collections.abc import Iterable

from memplane.api.auth.identity import NAME_RULE, Identity, Role, valid_name
from memplane.api.errors import Forbidden, HttpError
from memplane.contracts import Scope

USER_HEADER = b"x-memory-user"

REQUIRED_ROLE = {
    "MEMORY.GET": Role.READER,
    "MEMORY.QUERY": Role.READER,
    "MEMORY.SEARCH": Role.READER,
    "MEMORY.WRITE": Role.WRITER,
    "MEMORY.UPDATE": Role.WRITER,
    "MEMORY.DELETE": Role.WRITER,
}


def check_role(identity: Identity, node: str) -> None:
    """Raise `Forbidden` unless the identity may call this node. Unknown nodes are nobody's to forbid."""
    role = REQUIRED_ROLE.get(node)
    if role is not None and role not in identity.roles:
        raise Forbidden(f"{node} needs the role {role.value}")


def scope_of(identity: Identity, user_headers: Iterable[bytes]) -> Scope:
    """The scope of a request: the credential's tenant, and its user or the one that X-Memory-User names.

    `user_headers` are all values of that header. Raises 400 when it is needed and missing, repeated or not a name;
    `Forbidden` when the credential does not allow that user.
    """
    users = identity.users
    named = _named_user(list(user_headers))
    if named is None:
        if users is not None and len(users) == 1:
            return Scope(identity.tenant, next(iter(users)))
        raise HttpError(400, "USER_REQUIRED", "This credential serves several users: name one in X-Memory-User")
    if users is not None and named not in users:
        raise Forbidden("This credential does not allow that user")
    return Scope(identity.tenant, named)


def _named_user(values: list[bytes]) -> str | None:
    if not values:
        return None
    if len(values) > 1:
        raise HttpError(400, "INVALID_USER", "X-Memory-User may be given once")
    try:
        name = values[0].strip().decode("utf-8")
    except UnicodeDecodeError:
        raise HttpError(400, "INVALID_USER", "X-Memory-User must be UTF-8") from None
    if not valid_name(name):
        raise HttpError(400, "INVALID_USER", f"X-Memory-User must be {NAME_RULE}")
    return name
