"""Rows encoded by column are what pymilvus would have sent, byte for byte."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from pymilvus import DataType
from pymilvus.client.prepare import Prepare
from pymilvus.exceptions import MilvusException, ParamError

from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_collection import kinds
from memplane.projections.milvus_upsert import upsert_columns, upsert_request
from tests.projections.support import rows as held_rows
from tests.projections.support import task, truth


def row(number: int, dimensions: int = 8, **fields: object) -> dict[str, Any]:
    generator = random.Random(number)
    return {
        "memory_id": number,
        "backend": "b" * 36,
        "tenant": "acme",
        "user_id": "日本 \U0001f600 'x'",
        "version": 2**53,
        "content_hash": "a" * 64,
        "importance": generator.random(),
        "category": "",
        "tags": {"values": ["a", "ü"]},
        "slot_hint": "",
        "expires_at": -1,
        "metadata": {},
        "projection_hash": "c" * 64,
        "vector": array("f", [generator.uniform(-1, 1) for _ in range(dimensions)]),
        **fields,
    }


def deep(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(levels):
        document = {"a": document}
    return document


NASTY: list[dict[str, Any]] = [
    {},
    {"a": 1e16, "b": -0.0, "c": 2**64 - 1, "d": -(2**63), "e": None, "f": [True, False, [], {}]},
    {"é": "\u2028\x7f\x01", "nul": "\\u0000", "nested": {"list": [{"x": [1, 2.5, "3"]}]}},
    deep(600),
]


@pytest.mark.parametrize("dimensions", [1, 8, 384])
def test_the_request_is_the_one_that_pymilvus_makes(dimensions: int) -> None:
    rows = [row(number, dimensions, metadata=metadata) for number, metadata in enumerate(NASTY * 30)]
    fields = [
        {
            "name": name,
            "type": DataType(kind),
            "params": {"max_length": 65535, "dim": dimensions},
            "is_primary": name == "memory_id",
        }
        for name, kind in kinds()
    ]
    theirs = Prepare.row_upsert_param("memories", rows, "", fields)
    ours = upsert_request("memories", rows, kinds())
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    assert upsert_request("memories", rows[:1], kinds(), "other").db_name == "other"


class OlderClient:
    """A pymilvus that does not take a ready request."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.upserted: list[Any] = []

    def _get_connection(self) -> OlderClient:
        return self

    def upsert(self, collection: str, data: list[Any], **options: Any) -> None:
        if "upsert_param" in options:
            raise self.error
        self.upserted.append((collection, data, options["timeout"]))


def test_a_pymilvus_that_takes_no_ready_request_gets_the_rows() -> None:
    client = OlderClient(ParamError(message="entities are missing"))
    upsert_columns(client, "memories", [row(1)], kinds=kinds(), timeout=3)
    assert client.upserted == [("memories", [row(1)], 3)]


def test_what_the_server_refuses_is_not_sent_again() -> None:
    client = OlderClient(MilvusException(code=1100, message="too long"))
    with pytest.raises(MilvusException):
        upsert_columns(client, "memories", [row(1)], kinds=kinds(), timeout=3)
    assert client.upserted == []


async def test_a_server_holds_what_was_encoded(milvus: MilvusProjection) -> None:
    states = [
        truth(number, metadata=metadata, tags=["x", "日本"]) for number, metadata in enumerate(NASTY[:3], start=1)
    ]
    await milvus.project([task(state) for state in states], timeout=30)
    held = await held_rows(milvus)
    assert [held[number]["metadata"] for number in (1, 2, 3)] == NASTY[:3]
    assert all(held[number]["tags"] == {"values": ["x", "日本"]} for number in held)
