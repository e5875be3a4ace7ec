"""The hashed text is canonical JSON, and every part of it counts."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.schema import json_values

from memplane.plugins.postgres.hashes import Hashed, content_hash, hashed_text, relation_hash
from memplane.schema.canonical import canonical, normalise
from memplane.schema.times import format_time

TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda instant: instant.replace(tzinfo=UTC))  # noqa: DTZ001
OPTIONAL = st.none() | json_values.text
HASHED = st.builds(
    Hashed,
    memory_id=st.integers(1, 2**63 - 1),
    tenant=json_values.text,
    user_id=json_values.text,
    key=OPTIONAL,
    text_hash=st.binary(min_size=32, max_size=32),
    is_document=st.booleans(),
    metadata=st.none() | json_values.objects.map(lambda value: canonical(normalise(value, "metadata"))),
    importance=st.none() | st.floats(0, 1),
    category=OPTIONAL,
    tags=st.none() | st.lists(json_values.text, max_size=3),
    slot_hint=OPTIONAL,
    expires_at=st.none() | TIMES,
    version=st.integers(1, 2**63 - 1),
    deleted_at=st.none() | TIMES,
)


def document(row: Hashed) -> dict[str, Any]:
    return {
        "category": row.category,
        "content_sha256": row.text_hash.hex(),
        "deleted_at": row.deleted_at and format_time(row.deleted_at),
        "document": row.is_document,
        "expires_at": row.expires_at and format_time(row.expires_at),
        "importance": row.importance,
        "key": row.key,
        "memory_id": row.memory_id,
        "metadata": None if row.metadata is None else json.loads(row.metadata),
        "slot_hint": row.slot_hint,
        "tags": row.tags,
        "tenant": row.tenant,
        "user_id": row.user_id,
        "version": row.version,
    }


@given(HASHED)
def test_the_hashed_text_is_canonical_json(row):
    assert hashed_text(row) == canonical(document(row))


BASE = Hashed(1, "t", "u", "k", b"\0" * 32, False, "{}", 0.5, "c", ["a"], "s", datetime(2030, 1, 1, tzinfo=UTC), 1)
OTHER: dict[str, Any] = {
    "memory_id": 2,
    "tenant": "T",
    "user_id": "U",
    "key": None,
    "text_hash": b"\1" * 32,
    "is_document": True,
    "metadata": '{"a":1}',
    "importance": 0.25,
    "category": None,
    "tags": ["a", "b"],
    "slot_hint": "",
    "expires_at": None,
    "version": 2,
    "deleted_at": datetime(2030, 1, 1, tzinfo=UTC),
}


@pytest.mark.parametrize("field", [field.name for field in fields(Hashed)])
def test_every_field_counts(field):
    assert content_hash(replace(BASE, **{field: OTHER[field]})) != content_hash(BASE)


def test_the_hash_is_stable_across_releases():
    """A change here makes every stored hash stale: it needs a migration that recomputes them."""
    assert content_hash(BASE) == "30e856160b11972e0526a4846fdaaf5deb087185c37a6662e1f02072d990e396"
    edge = {"source_id": 1, "kind": "r", "target_id": 2, "tenant": "t", "user_id": "u", "version": 3}
    assert relation_hash(**edge, deleted=False) == "9543a18207dae3983df672d0450ff1b5d81959e9930ac0553d4842bfde43f92e"
    assert relation_hash(**edge, deleted=True) != relation_hash(**edge, deleted=False)


def test_fields_cannot_run_into_each_other():
    left, right = replace(BASE, tenant='a","user_id":"b'), replace(BASE, tenant="a", user_id='b","user_id":"u')
    assert content_hash(left) != content_hash(right)
