"""The chart: lints, renders what the golden files say, refuses bad values, packages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from tests.stack.promtool import promtool

from e2e.cluster import ROOT, ClusterError, E2ECluster

CHART = ROOT / "charts" / "memplane"
GOLDEN = Path(__file__).parent / "golden"

# Without the resource definition and the alerts: both are files of their own, compared with what is rendered below.
VALUES: dict[str, list[str]] = {
    "defaults": ["--set", "crds.install=false"],
    "namespaced": ["--set", "operator.watchNamespaces={agents,research}", "--set", "crds.install=false"],
    "everything": [
        "--set", "operator.replicas=2,podDisruptionBudget.enabled=true,networkPolicy.enabled=true",
        "--set", "serviceMonitor.enabled=true,crds.install=false",
        "--set", "image.digest=sha256:" + "a" * 64, "--set", "image.pullSecrets={registry}",
    ],
}  # fmt: skip


def render(cluster: E2ECluster, *arguments: str) -> str:
    return cluster.helm(
        "template", "memplane", str(CHART), "--namespace", "system", "--kube-version", "1.34.0", *arguments
    )


@pytest.mark.parametrize("name", VALUES)
def test_rendered_objects_equal_the_golden_file(cluster: E2ECluster, name: str) -> None:
    """`MEMPLANE_UPDATE_GOLDEN=1` writes the golden files anew."""
    got = render(cluster, *VALUES[name])
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("MEMPLANE_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(got)
    assert got == path.read_text()


@pytest.mark.parametrize("values", [[], ["--values", str(CHART / "values-trial.yaml")]])
def test_the_chart_lints(cluster: E2ECluster, values: list[str]) -> None:
    cluster.helm("lint", str(CHART), "--strict", *values)


def test_the_rendered_resource_definition_is_the_generated_one(cluster: E2ECluster) -> None:
    (rendered,) = yaml.safe_load_all(render(cluster, "--show-only", "templates/crd.yaml"))
    generated = yaml.safe_load((ROOT / "crds" / "memplane.dev_memorybackends.yaml").read_text(encoding="utf-8"))
    assert rendered["spec"] == generated["spec"]
    assert rendered["metadata"]["name"] == generated["metadata"]["name"]


def test_the_resource_definition_is_kept_unless_told_otherwise(cluster: E2ECluster) -> None:
    policy = "helm.sh/resource-policy: keep"
    assert policy in render(cluster)
    assert policy not in render(cluster, "--set", "crds.keep=false")
    assert "CustomResourceDefinition" not in render(cluster, "--set", "crds.install=false")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("operator.replicas=-1", "replicas"),
        ("operator.workers=0", "workers"),
        ("operator.watchNamespaces={Agents}", "watchNamespaces"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("image.digest=sha256:1", "digest"),
        ("serviceMonitor.interval=soon", "interval"),
        ("trial.storage=big", "storage"),
        ("operater.replicas=1", "operater"),
    ],
)
def test_bad_values_are_refused_by_name(cluster: E2ECluster, setting: str, expected: str) -> None:
    with pytest.raises(ClusterError, match=expected):
        render(cluster, "--set", setting)


def test_the_operator_may_not_list_or_watch_secrets(cluster: E2ECluster) -> None:
    text = render(cluster, "--show-only", "templates/rbac.yaml")
    for block in text.split("- apiGroups")[1:]:
        if "secrets" in block:
            assert "list" not in block
            assert "watch" not in block
            assert "delete" not in block


def test_the_rendered_rules_are_what_prometheus_reads(cluster: E2ECluster, tmp_path: Path) -> None:
    """promtool also runs each alert over recorded series: see `tests/alerts`."""
    text = render(cluster, "--show-only", "templates/monitoring.yaml", "--set", "prometheusRule.enabled=true")
    (rule,) = yaml.safe_load_all(text)
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": rule["spec"]["groups"]}, allow_unicode=True), encoding="utf-8")
    files = sorted((CHART / "files" / "rules").glob("*.yaml"))
    written = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}
    assert {group["name"]: group["rules"] for group in rule["spec"]["groups"]} == written
    out = cluster.run(str(promtool()), "check", "rules", str(path))
    assert f"{len(files)} rules found" in out


def test_the_dashboard_is_rendered_as_it_is(cluster: E2ECluster) -> None:
    """Which metrics it names is checked in `tests/alerts`."""
    text = render(
        cluster, "--show-only", "templates/monitoring.yaml", "--set", "dashboard.enabled=true",
        "--set", "dashboard.annotations.folder=agents",
    )  # fmt: skip
    (found,) = yaml.safe_load_all(text)
    written = (CHART / "files" / "dashboards" / "memplane.json").read_text(encoding="utf-8")
    assert found["data"]["memplane.json"].strip() == written.strip()
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"folder": "agents"}


def test_runbooks_may_be_somewhere_else(cluster: E2ECluster) -> None:
    text = render(
        cluster, "--show-only", "templates/monitoring.yaml", "--set", "prometheusRule.enabled=true",
        "--set", "prometheusRule.runbookUrl=https://wiki.example/memplane",
    )  # fmt: skip
    (found,) = yaml.safe_load_all(text)
    urls = [rule["annotations"]["runbook_url"] for group in found["spec"]["groups"] for rule in group["rules"]]
    assert urls
    assert all(url.startswith("https://wiki.example/memplane/") for url in urls)


def test_the_chart_packages(cluster: E2ECluster, tmp_path: Path) -> None:
    cluster.helm("package", str(CHART), "--destination", str(tmp_path))
    assert [path.suffix for path in tmp_path.iterdir()] == [".tgz"]


def test_helm_test_passes_on_the_release(cluster: E2ECluster, release: str) -> None:
    cluster.helm("test", "memplane", "--namespace", release, "--timeout", "3m")


@pytest.mark.parametrize("path", ["", ".spec", ".spec.projections.milvus.worker", ".spec.reconciler.purge", ".status"])
def test_kubectl_explain_describes_every_field(cluster: E2ECluster, release: str, path: str) -> None:
    text = cluster.kubectl("explain", f"memorybackend{path}")
    assert "<no description>" not in text.replace("metadata\t<ObjectMeta>", ""), text
    assert "DESCRIPTION:" in text
