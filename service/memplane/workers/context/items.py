"""Context items: where they come from, what they may hold, and merging them. Source: behaviours X-01 … X-10.

Pure. Everything that comes out is deeply read-only and shares nothing with what came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from memplane.runtime.canonical import NotJson, canonical_json, digest, freeze, snapshot
from memplane.runtime.worker import NODE_ID
from memplane.workers.context.errors import ContextError, invalid
from memplane.workers.context.policy import ContextPolicy

Item: TypeAlias = Mapping[str, Any]
"""`{id, content, source?: reference, metadata?}`, frozen."""

Context: TypeAlias = Mapping[str, Any]
"""`{items}`, frozen."""

ROLES = ("system", "user", "assistant", "tool")


def from_source(source: object, path: str) -> Item:
    """An item from whatever LOAD takes: has `id` → an item, else has `role` → a message, else a reference."""
    if not isinstance(source, Mapping):
        raise invalid(f"{path} must be an object")
    if "id" in source:
        return check_item(source, path)
    return _from_message(source, path) if "role" in source else _from_reference(source, path)


def check_item(item: object, path: str) -> Item:
    """A frozen copy of an item with its known fields. Raises `ContextError`."""
    if not isinstance(item, Mapping):
        raise invalid(f"{path} must be an object")
    if not isinstance(item.get("id"), str) or not item["id"]:
        raise invalid(f"{path}.id must be a nonempty string")
    if "content" not in item:
        raise invalid(f"{path}.content is required")
    checked: dict[str, Any] = {"id": item["id"], "content": json_copy(item["content"], f"{path}.content")}
    if "source" in item:
        checked["source"] = check_reference(item["source"], f"{path}.source")
    if "metadata" in item:
        if not isinstance(item["metadata"], Mapping):
            raise invalid(f"{path}.metadata must be an object")
        checked["metadata"] = json_copy(item["metadata"], f"{path}.metadata")
    frozen: Item = freeze(checked)
    return frozen


def from_ingress(ingress: object, path: str) -> Item:
    """An item from another node's output: `{id, sourceNode, content, reference?, metadata?}`."""
    if not isinstance(ingress, Mapping):
        raise invalid(f"{path} must be an object")
    node = ingress.get("sourceNode")
    if not isinstance(node, str) or not NODE_ID.fullmatch(node):
        raise invalid(f"{path}.sourceNode must be a qualified Node ID")
    metadata = ingress.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise invalid(f"{path}.metadata must be an object")
    item = {key: ingress[key] for key in ("id", "content") if key in ingress}
    if "reference" in ingress:
        item["source"] = ingress["reference"]
    return check_item({**item, "metadata": {**metadata, "sourceNode": node}}, path)


def check_reference(reference: object, path: str) -> Mapping[str, Any]:
    """A frozen copy of a reference: an object with a nonblank `uri`."""
    if not isinstance(reference, Mapping):
        raise invalid(f"{path} must be an object")
    if not isinstance(reference.get("uri"), str) or not reference["uri"].strip():
        raise invalid(f"{path}.uri must be a nonempty string")
    copied: Mapping[str, Any] = json_copy(reference, path)
    return copied


def check_context(context: object, policy: ContextPolicy) -> Context:
    """A frozen copy of an explicit context; ids must be unique, limits must hold."""
    if not isinstance(context, Mapping) or not _is_list(context.get("items")):
        raise invalid("context.items must be an array")
    items = [check_item(item, f"context.items[{index}]") for index, item in enumerate(context["items"])]
    seen: set[str] = set()
    for item in items:
        if item["id"] in seen:
            raise invalid(f"context has a duplicate item id: {item['id']}")
        seen.add(item["id"])
    return bounded(items, policy)


def merge(first: Iterable[Item], added: Iterable[Item], policy: ContextPolicy) -> list[Item]:
    """Items with more items: a repeated id is replaced where it stands, kept, or refused."""
    merged: dict[str, Item] = {}
    for item in first:
        merged[item["id"]] = item
    for item in added:
        if item["id"] in merged:
            if policy.duplicate == "reject":
                raise ContextError("DUPLICATE_ITEM", f"Context already has the item {item['id']}")
            if policy.duplicate == "keep-first":
                continue
        merged[item["id"]] = item
    return list(merged.values())


def remove(items: Sequence[Item], ids: Sequence[str], policy: ContextPolicy) -> list[Item]:
    """Items without those of `ids`; an absent one is ignored or refused."""
    present = {item["id"] for item in items}
    if policy.missing_removal == "reject":
        for missing in ids:
            if missing not in present:
                raise ContextError("MISSING_ITEM", f"Context has no item {missing}")
    removed = set(ids)
    return [item for item in items if item["id"] not in removed]


def bounded(items: Sequence[Item], policy: ContextPolicy) -> Context:
    """The context of these items. Raises `ContextError` when it, or one item, is too large."""
    if len(items) > policy.max_items:
        raise ContextError("ITEM_LIMIT_EXCEEDED", f"A context holds at most {policy.max_items} items, not {len(items)}")
    for item in items:
        size = content_bytes(item["content"])
        if size > policy.max_inline_bytes and not _is_referenced(item):
            raise ContextError(
                "INLINE_LIMIT_EXCEEDED", f"Item {item['id']} holds {size} bytes; at most {policy.max_inline_bytes} fit"
            )
    context: Context = freeze({"items": list(items)})
    return context


def content_bytes(content: Any) -> int:
    """Length of a content as compact JSON in UTF-8."""
    return len(canonical_json(content).encode())


def json_copy(value: Any, path: str) -> Any:
    """A frozen copy of a finite, acyclic JSON value. Raises `ContextError`."""
    try:
        return freeze(snapshot(value))
    except NotJson:
        raise invalid(f"{path} must be finite, acyclic JSON") from None


def _from_message(message: Mapping[str, Any], path: str) -> Item:
    if message["role"] not in ROLES:
        raise invalid(f"{path}.role must be one of {', '.join(ROLES)}")
    if "content" not in message:
        raise invalid(f"{path}.content is required")
    if "name" in message and (not isinstance(message["name"], str) or not message["name"]):
        raise invalid(f"{path}.name must be a nonempty string")
    metadata = message.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise invalid(f"{path}.metadata must be an object")
    copied = json_copy(message, path)
    named = {key: message[key] for key in ("role", "name") if key in message}
    item = {
        "id": f"message:{digest(copied)}",
        "content": copied["content"],
        "metadata": {**metadata, "sourceType": "message", **named},
    }
    return check_item(item, path)


def _from_reference(reference: Mapping[str, Any], path: str) -> Item:
    copied = check_reference(reference, path)
    return check_item(
        {
            "id": f"reference:{digest(copied)}",
            "content": [{"type": "reference", "reference": copied}],
            "source": copied,
            "metadata": {"sourceType": "reference"},
        },
        path,
    )


def _is_referenced(item: Item) -> bool:
    parts = item["content"] if _is_list(item["content"]) else (item["content"],)
    return "source" in item or any(isinstance(part, Mapping) and part.get("type") == "reference" for part in parts)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)
