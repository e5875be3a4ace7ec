"""The example workload of `docs/examples/fulfillment`: it starts with exactly its arguments, behind a policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

FILE = Path(__file__).parents[2] / "docs" / "examples" / "fulfillment" / "fulfillment.yaml"


def by_kind() -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(FILE.read_text())}


def test_the_service_runs_with_the_arguments_of_its_pod(tmp_path: Path) -> None:
    """Its own loopback address stands for the pod's, and a folder of the test for the volume."""
    [container] = by_kind()["Deployment"]["spec"]["template"]["spec"]["containers"]
    replaced = {
        "--host=0.0.0.0": "--host=127.0.0.2",
        "--port=8090": "--port=0",
        "--database=/var/lib/fulfillment/ledger.sqlite": f"--database={tmp_path / 'ledger.sqlite'}",
    }
    assert set(replaced) <= set(container["args"])
    arguments = [replaced.get(argument, argument) for argument in container["args"]]
    command = [str(Path(sys.executable).parent / "memplane"), "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert url.startswith("http://127.0.0.2:")
        assert httpx.get(f"{url}/catalog/primary", params={"sku": "SKU-731"}).json()["available"] == 20
        with pytest.raises(httpx.ConnectError):
            httpx.get(url.replace("127.0.0.2", "127.0.0.1"))
        process.terminate()
        assert process.wait(30) == 0


def test_only_pods_that_run_tasks_may_reach_it() -> None:
    found = by_kind()
    pod = found["Deployment"]["spec"]["template"]
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    [rule] = found["NetworkPolicy"]["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"memplane.dev/component": "recovery"}}}]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8090}]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    [container] = pod["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert found["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}, "one SQLite file has one writer"
