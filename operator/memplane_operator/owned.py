"""Decides whether an object must be applied: do the fields that we own already hold the desired values?

Never compared with the whole live object: what the server defaulted and what others own is not ours to judge.
`managedFields` tells which fields our manager owns; a field that we own but no longer desire, or desire but do not own,
needs an apply.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from memplane_operator.cluster import FIELD_MANAGER
from memplane_operator.desired.context import Manifest

Path = tuple[str, ...]
_IDENTITY = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}


def owned_fields(live: Manifest, manager: str = FIELD_MANAGER) -> set[Path] | None:
    """Leaf paths that our apply owns; None when we never applied the object."""
    for entry in live.get("metadata", {}).get("managedFields", []):
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            return set(_leaves(entry.get("fieldsV1", {})))
    return None


def _leaves(fields: Mapping[str, Any], prefix: Path = ()) -> Iterable[Path]:
    children = {key: value for key, value in fields.items() if key != "."}
    if not children:
        if prefix:
            yield prefix
        return
    for key, value in children.items():
        yield from _leaves(value, (*prefix, key))


def in_sync(live: Manifest, desired: Manifest, manager: str = FIELD_MANAGER) -> bool:
    """Whether an apply of `desired` would change nothing."""
    owned = owned_fields(live, manager)
    return owned is not None and _covers(desired, live, owned)


def _covers(desired: Manifest, live: Manifest, owned: set[Path]) -> bool:
    for path in owned:
        found, want = _follow(desired, path)
        if not found:
            return False
        _, have = _follow(live, path)
        quantity = "f:limits" in path or "f:requests" in path
        if not (_same(want, have) or (quantity and _quantity(want) == _quantity(have))):
            return False
    return all(_is_owned(path, owned) for path in _plain_leaves(desired, ()))


def _follow(node: Any, path: Path) -> tuple[bool, Any]:
    """The value at a managed-fields path: `f:name` a field, `k:{…}` a list item by key, `v:…` a set member."""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            if not isinstance(node, Mapping) or rest not in node:
                return False, None
            node = node[rest]
        elif kind == "k":
            keys = json.loads(rest)
            matches = [item for item in node or [] if all(_key(item, k) == v for k, v in keys.items())]
            if not matches:
                return False, None
            node = matches[0]
        elif kind == "v":
            value = json.loads(rest)
            if value not in (node or []):
                return False, None
            node = value
        else:
            return False, None
    return True, node


_KEY_DEFAULTS = {"protocol": "TCP"}


def _key(item: Mapping[str, Any], name: str) -> Any:
    return item.get(name, _KEY_DEFAULTS.get(name))


def _same(want: Any, have: Any) -> bool:
    """Equal as the API sees it: empty and absent are one, quantities may be respelled by the server."""
    if want == have:
        return True
    if not want and not have:
        return True
    if isinstance(want, Mapping) and isinstance(have, Mapping):
        # A leaf that the server owns as a whole (an empty map that it filled): only what we name counts.
        return all(_same(value, have.get(key)) for key, value in want.items())
    if isinstance(want, list) and isinstance(have, list):
        return len(want) == len(have) and all(_same(a, b) for a, b in zip(want, have, strict=True))
    return False


def _quantity(value: Any) -> Decimal | None:
    """A Kubernetes quantity as a number: the server stores 0.5 as 500m."""
    try:
        number: Decimal = parse_quantity(value)  # type: ignore[no-untyped-call]
        return number
    except ValueError:
        return None


def _plain_leaves(node: Any, prefix: Path) -> Iterable[Path]:
    """Field paths of the desired object; a list counts as one leaf, its items are covered by what we own."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _plain_leaves(value, (*prefix, f"f:{key}"))
    elif node not in (None, {}, []):
        yield prefix


def _is_owned(path: Path, owned: set[Path]) -> bool:
    names = tuple(step.partition(":")[2] for step in path)
    if names in _IDENTITY:
        return True
    return any(candidate[: len(path)] == path or path[: len(candidate)] == candidate for candidate in owned)
