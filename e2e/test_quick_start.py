"""The README's Kubernetes quick start, followed literally on a cluster of its own."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator

import pytest
import yaml

from e2e.cluster import ROOT, E2ECluster

pytestmark = pytest.mark.full
CLUSTER = "memplane-quick"
TRIAL = ROOT / "docs" / "examples" / "memorybackend.yaml"


def commands() -> str:
    (block,) = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return str(block)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def here(script: str, cluster: E2ECluster) -> str:
    """The commands with another cluster's name and a free port, and without what needs an image registry."""
    script = script.replace("--name memplane\n", f"--name {CLUSTER}\n").replace(":8080", f":{free_port()}")
    script = script.replace(" 8080:80 ", f" {re.findall(r'127.0.0.1:([0-9]+)', script)[0]}:80 ")
    script = script.replace(
        "docker build -t memplane/memplane:0.1.0 .",
        f"docker tag {cluster.repository}:{cluster.tag} memplane/memplane:0.1.0",
    )
    if cluster.scripted:
        script = script.replace(f"kind create cluster --name {CLUSTER}\n", "")
        script = script.replace(
            "--wait --timeout",
            "--set trial.milvus.image=milvusdb/milvus:v2.3.5-standalone-local,trial.milvus.command=null "
            "--wait --timeout",
        )
    return script


@pytest.fixture
def environment(cluster: E2ECluster) -> Iterator[dict[str, str]]:
    if not cluster.context.startswith("kind-"):
        pytest.skip("needs kind: the test makes a cluster of its own")
    environment = {**cluster.environment, "CLUSTER_NAME": CLUSTER}
    down = ["kind", "delete", "cluster", "--name", CLUSTER]
    if cluster.scripted:
        scripts = os.environ["MEMPLANE_CLUSTER_SCRIPTS"]
        cluster.run(f"{scripts}/up", environment=environment)
        cluster.run(f"{scripts}/images", "python", "postgres", "milvus", "neo4j", environment=environment)
        exported = cluster.run("bash", "-c", f'eval "$({scripts}/env)"; env -0', environment=environment)
        environment = dict(line.split("=", 1) for line in exported.split("\0") if "=" in line)
        down = [f"{scripts}/down"]
    yield environment
    cluster.run(*down, environment=environment)


def test_the_quick_start_of_the_readme_works(cluster: E2ECluster, environment: dict[str, str]) -> None:
    script = f"{here(commands(), cluster)}\nkill %1\n"
    output = cluster.run("bash", "-euo", "pipefail", "-c", script, environment=environment, timeout=1500)
    answers = [line for line in output.splitlines() if line.startswith("{")]
    assert len(answers) == 2, output
    assert all('"status":"success"' in answer for answer in answers), output
    assert "green tea" in answers[1], output
    assert re.search(r"^memory +True +postgres", output, re.MULTILINE), "kubectl get mb tells that it is Ready"


def test_the_notes_print_the_same_backend(cluster: E2ECluster) -> None:
    chart = ROOT / "charts" / "memplane"
    notes = cluster.helm(
        "install", "memplane", str(chart), "--namespace", "memplane", "--dry-run=client",
        "--values", str(chart / "values-trial.yaml"), "--set", "crds.install=false",
    )  # fmt: skip
    (printed,) = re.findall(r"<<MB\n(.*?)^ *MB$", notes, re.DOTALL | re.MULTILINE)
    assert yaml.safe_load(printed) == yaml.safe_load(TRIAL.read_text(encoding="utf-8"))
