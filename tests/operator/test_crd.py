"""The CRD: generated, structural, described."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from memplane_operator.api.crd import crd

ROOT = Path(__file__).parents[2]


def schemas(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of the CRD with its path."""
    if isinstance(node, dict) and "type" in node:
        yield path, node
        for name, child in node.get("properties", {}).items():
            yield from schemas(child, f"{path}.{name}")
        yield from schemas(node.get("items"), f"{path}[]")
        yield from schemas(node.get("additionalProperties"), f"{path}{{}}")


@pytest.fixture
def root() -> dict[str, Any]:
    schema: dict[str, Any] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


@pytest.mark.parametrize("copy", ["crds", "charts/memplane/files"])
def test_committed_copies_equal_the_generated_resource_definition(copy: str) -> None:
    committed = yaml.safe_load((ROOT / copy / "memplane.dev_memorybackends.yaml").read_text())
    assert committed == crd(), "run `make crd`"


def test_every_field_is_described_and_typed(root: dict[str, Any]) -> None:
    undescribed = [
        path
        for path, schema in schemas(root)
        if path and path[-1] not in "]}" and path != ".metadata" and not schema.get("description")
    ]
    assert undescribed == []


def test_only_the_plugins_own_documents_are_free_form(root: dict[str, Any]) -> None:
    free = [path for path, schema in schemas(root) if schema.get("x-kubernetes-preserve-unknown-fields")]
    assert sorted(free) == [
        ".spec.consolidation.policy.options",
        ".spec.embedding.options",
        ".spec.embeddingPrevious.options",
        ".spec.search.options",
        ".spec.store.options",
    ]


def test_every_rule_has_a_message_that_says_what_to_do(root: dict[str, Any]) -> None:
    rules = [rule for _, schema in schemas(root) for rule in schema.get("x-kubernetes-validations", [])]
    assert len(rules) >= 10
    assert all(len(rule["message"]) > 30 for rule in rules)


def test_names_keep_their_spelling(root: dict[str, Any]) -> None:
    projections = root["properties"]["spec"]["properties"]["projections"]["properties"]
    assert set(projections) == {"milvus", "neo4j"}


def test_conditions_are_a_list_map_by_type(root: dict[str, Any]) -> None:
    conditions = root["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_columns_tell_the_state_at_a_glance() -> None:
    names = [column["name"] for column in crd()["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert names == ["Ready", "Store", "Backlog", "Lag", "Dead", "Drift", "Age"]
