"""Decides whether an object must be applied: do the fields that we own already hold the desired values?

Never compared with the whole live object: what the server defaulted and what others own is not ours to judge.
`managedFields` tells which fields our manager owns; a field that we own but no longer desire, or desire but do not own,
needs an apply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from memplane_operator.cluster import FIELD_MANAGER
from memplane_operator.desired.context import Manifest

Fields = Mapping[str, Any]
"""A `fieldsV1` tree: `f:name` a field, `k:{…}` a list item by its keys, `v:…` a set member, `.` the item itself."""

_IDENTITY = frozenset({"apiVersion", "kind", "name", "namespace"})
_KEY_DEFAULTS = {"protocol": "TCP"}
_QUANTITIES = frozenset({"limits", "requests", "sizeLimit", "storage"})


def owned_fields(live: Manifest, manager: str = FIELD_MANAGER) -> Fields | None:
    """The tree of fields that our apply owns; None when we never applied the object."""
    for entry in live.get("metadata", {}).get("managedFields", []):
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: Fields = entry.get("fieldsV1", {})
            return fields
    return None


def owns(fields: Fields | None, *path: str) -> bool:
    """Whether a field, by its names, is among what we own."""
    node: Any = fields
    for name in path:
        if not isinstance(node, Mapping) or f"f:{name}" not in node:
            return False
        node = node[f"f:{name}"]
    return fields is not None


def in_sync(live: Manifest, desired: Manifest, manager: str = FIELD_MANAGER) -> bool:
    """Whether an apply of `desired` would change nothing."""
    fields = owned_fields(live, manager)
    return fields is not None and _agree(desired, live, fields, quantity=False)


def _agree(want: Any, have: Any, fields: Fields, *, quantity: bool) -> bool:
    """Whether what is wanted, what is there and what we own agree below one node."""
    children = {key: child for key, child in fields.items() if key != "."}
    if not children:
        return _same(want, have, quantity=quantity)
    if isinstance(want, Mapping):
        return isinstance(have, Mapping) and _agree_mapping(want, have, children, quantity=quantity)
    if isinstance(want, list):
        return isinstance(have, list) and _agree_list(want, have, children, quantity=quantity)
    return False


def _agree_mapping(want: Fields, have: Fields, children: Fields, *, quantity: bool) -> bool:
    for name, value in want.items():
        key = f"f:{name}"
        if key not in children and name not in _IDENTITY and not _empty(value):
            return False
    for key, below in children.items():
        name = key.removeprefix("f:")
        if name not in want:
            return False
        if not _agree(want[name], have.get(name), below, quantity=quantity or name in _QUANTITIES):
            return False
    return True


def _agree_list(want: Sequence[Any], have: Sequence[Any], children: Fields, *, quantity: bool) -> bool:
    if len(children) != len(want):
        return False
    for key, below in children.items():
        kind, _, text = key.partition(":")
        member = json.loads(text)
        if kind == "v":
            if member not in want or member not in have:
                return False
            continue
        mine, theirs = _find(want, member), _find(have, member)
        if mine is None or theirs is None or not _agree(mine, theirs, below, quantity=quantity):
            return False
    return True


def _find(items: Sequence[Any], keys: Mapping[str, Any]) -> Any:
    """The list item that these keys select; the server fills some keys in."""
    for item in items:
        if all(item.get(name, _KEY_DEFAULTS.get(name)) == value for name, value in keys.items()):
            return item
    return None


def _same(want: Any, have: Any, *, quantity: bool) -> bool:
    """Equal as the API sees it: empty and absent are one, a quantity may be respelled, extra keys are the server's."""
    if want == have or (_empty(want) and _empty(have)):
        return True
    if isinstance(want, Mapping) and isinstance(have, Mapping):
        return all(_same(value, have.get(key), quantity=quantity) for key, value in want.items())
    if isinstance(want, list) and isinstance(have, list):
        return len(want) == len(have) and all(_same(a, b, quantity=quantity) for a, b in zip(want, have, strict=True))
    return quantity and _quantity(want) is not None and _quantity(want) == _quantity(have)


def _empty(value: Any) -> bool:
    return value is None or value in ({}, [], "")


def _quantity(value: Any) -> Decimal | None:
    """A Kubernetes quantity as a number: the server stores 0.5 as 500m."""
    try:
        number: Decimal = parse_quantity(value)  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    return number
