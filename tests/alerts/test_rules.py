"""The alerts of the chart, run by promtool over recorded series; each has a runbook and names metrics that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stack.promtool import promtool

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "charts" / "memplane" / "files" / "rules"
RUNBOOKS = ROOT / "docs" / "runbooks"
CASES = Path(__file__).parent / "cases"
BASE = "https://memplane.dev/docs/runbooks"
SIX = ("projection-behind", "outbox-dead", "projection-failing", "drift-rising", "hash-conflict", "cache-behind")
"""The key alerts of seed `002` section 13, in its order."""

names = sorted(path.stem for path in RULES.glob("*.yaml"))


def rules(name: str) -> list[dict[str, Any]]:
    found = yaml.safe_load((RULES / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, list)
    return found


@pytest.fixture(scope="module")
def rule_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All rules as Prometheus reads them: what the chart makes of the files, without the resource around it."""
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    groups = [{"name": name, "rules": rules(name)} for name in names]
    path.write_text(yaml.safe_dump({"groups": groups}, allow_unicode=True), encoding="utf-8")
    return path


def run(*arguments: str | Path) -> str:
    ended = subprocess.run([promtool(), *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_key_alerts_of_the_seed_are_there() -> None:
    assert set(SIX) <= set(names)
    assert set(SIX) <= {path.stem for path in CASES.glob("*.yaml")}


def test_prometheus_reads_the_rules(rule_file: Path) -> None:
    assert f"{len(names)} rules found" in run("check", "rules", rule_file)


@pytest.mark.parametrize("name", names)
def test_an_alert_has_one_runbook_of_its_name(name: str) -> None:
    (rule,) = rules(name)
    assert re.fullmatch(r"(Memplane[A-Z][A-Za-z]+)", rule["alert"])
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"{BASE}/{name}.md"
    page = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {rule['alert']}\n")
    for part in ("**What it means.**", "**Find it.**", "**What to do.**"):
        assert part in page


def test_every_runbook_has_its_alert() -> None:
    assert sorted(path.stem for path in RUNBOOKS.glob("*.md")) == names


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("*.yaml")))
def test_an_alert_fires_when_it_must_and_only_then(name: str, rule_file: Path, tmp_path: Path) -> None:
    document = yaml.safe_load((CASES / f"{name}.yaml").read_text(encoding="utf-8"))
    (rule,) = rules(name)
    fires = [one["exp_alerts"] for test in document["tests"] for one in test["alert_rule_test"]]
    assert any(fires), "a case must make it fire"
    assert not all(fires), "a case must keep it quiet"
    for test in document["tests"]:
        for series in test["input_series"]:
            assert isinstance(series["values"], str), "YAML reads 0x24 as a number: write 0+0x24"
        for one in test["alert_rule_test"]:
            assert one["alertname"] == rule["alert"]
            for expected in one["exp_alerts"]:
                expected["exp_labels"]["severity"] = rule["labels"]["severity"]
                expected["exp_annotations"] = _annotations(rule, expected.pop("values", {}))
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(rule_file)], "evaluation_interval": "1m", **document}))
    run("test", "rules", path)


counted = [name for name in names for rule in rules(name) if re.search(r"(increase|_over_time)\(", rule["expr"])]


def test_alerts_on_counters_are_found() -> None:
    assert {"drift-rising", "hash-conflict", "operator-reconciliation-fails"} <= set(counted)


@pytest.mark.parametrize("name", counted)
def test_an_alert_on_a_counter_sees_a_series_that_begins_above_zero(name: str) -> None:
    """increase() does not: what it counts begins with the second sample."""
    (rule,) = rules(name)
    for counter in re.findall(r"\bincrease\((\w+)_total\b", rule["expr"]):
        assert f"{counter}_created" in rule["expr"], "count all of a young counter, or compare the highest and lowest"
    document = yaml.safe_load((CASES / f"{name}.yaml").read_text(encoding="utf-8"))
    firing = [test for test in document["tests"] if any(one["exp_alerts"] for one in test["alert_rule_test"])]
    begun = [one["values"] for test in firing for one in test["input_series"] if "_total{" in one["series"]]
    assert any(re.match(r"_x\d+ [1-9]", values) for values in begun), "a case must begin above zero and fire"


def _annotations(rule: dict[str, Any], values: dict[str, str]) -> dict[str, str]:
    """The rule's annotations with its `{{ … }}` replaced by what the case expects them to show."""

    def shown(match: re.Match[str]) -> str:
        return str(values[match[1].strip()])

    return {name: re.sub(r"\{\{(.*?)\}\}", shown, text) for name, text in rule["annotations"].items()}
