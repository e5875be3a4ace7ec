"""The dashboard and the alerts name metrics and labels that the processes really export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from memplane.outbox.events import Target
from memplane.settings import Settings
from memplane_operator.metrics import OperatorMetrics
from tests.http.world import Keys, client, keys, node, service, settings, settled

__all__ = ["keys", "settings"]

CHART = Path(__file__).resolve().parents[2] / "charts" / "memplane" / "files"
OF_THE_SCRAPE = {"namespace", "job", "pod", "le"}
"""Labels that Prometheus adds, and that of a histogram's buckets."""

PANELS = {
    "Events that wait": "memory_outbox_pending_total",
    "Age of the oldest": "memory_outbox_oldest_pending_seconds",
    "Latency, commit to projected": "memory_projection_latency_seconds",
    "Retries per minute": "memory_outbox_retry_total",
    "Dead events": "memory_outbox_dead_total",
    "Differences found": "memory_reconciliation_mismatch_total",
    "Cache reloads per second": "memory_cache_reload_total",
}
"""What the dashboard must show, each but the caches per target."""


def dashboard() -> dict[str, Any]:
    found = json.loads((CHART / "dashboards" / "memplane.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Where an expression is, and the expression."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']!r}", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']!r}", variable["definition"]
    for path in sorted((CHART / "rules").glob("*.yaml")):
        for rule in yaml.safe_load(path.read_text(encoding="utf-8")):
            yield f"alert {rule['alert']}", rule["expr"]


async def exported(settings: Settings, keys: Keys) -> dict[str, set[str]]:
    """Every metric of a service with workers, and of the operator, by the names of its series: its labels."""
    async with service(settings, workers=(Target.MILVUS, Target.NEO4J)) as (url, _), client(url, keys["ann"]) as http:
        (written,) = await node(http, "WRITE", {"memories": [{"content": "a green parrot"}]})
        await settled(url)
        await node(http, "GET", {"ids": [written["id"]]})
        text = (await http.get("/metrics")).text
    found: dict[str, set[str]] = {}
    for source in (text, generate_latest(OperatorMetrics().registry).decode()):
        for family in text_string_to_metric_families(source):
            found.setdefault(family.name if family.type != "counter" else f"{family.name}_total", set())
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def test_every_name_is_exported(settings: Settings, keys: Keys) -> None:
    known = await exported(settings, keys)
    for where, expression in expressions():
        names = set(re.findall(r"\b(mem(?:ory|plane)_[a-z_]+)\b", expression))
        assert names, where
        assert names <= set(known), f"{where} names {sorted(names - set(known))}"
        used = {
            label
            for group in re.findall(r"\bby \(([^)]*)\)", expression) + re.findall(r"\{([^}]*)\}", expression)
            for label in re.findall(r"\b([a-z_]+)\b(?=\s*(?:=|!=|,|$))", re.sub(r'"[^"]*"', '""', group))
        }
        # A series without samples shows no labels; those of the seed are checked where the series are made.
        of_these = set().union(*(known[name] for name in names))
        assert not of_these or used <= of_these | OF_THE_SCRAPE | {"target", "type", "event_type"}, where


@pytest.mark.parametrize(("title", "metric"), PANELS.items(), ids=PANELS)
def test_the_dashboard_shows_what_an_operator_needs(title: str, metric: str) -> None:
    (panel,) = [panel for panel in dashboard()["panels"] if panel["title"] == title]
    for target in panel["targets"]:
        assert metric in target["expr"]
        assert ("target" in target["expr"]) is (metric != "memory_cache_reload_total")


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    panels = dashboard()["panels"]
    cells = [
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
