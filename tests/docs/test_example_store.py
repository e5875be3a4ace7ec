"""The example store of `docs/examples`, installed as a user would and chosen by name in a `MemoryBackend`."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.http.processes import child, wait_ready

from memplane.api.auth.identity import Role
from memplane.api.auth.key_file import KeyFile, new_key, render_key_file
from memplane.errors import SettingsError
from memplane.plugins.registry import Resources, create_store
from memplane_operator.api.spec import MemoryBackendSpec
from memplane_operator.desired.build import build
from memplane_operator.desired.config import SECRET_PATH
from memplane_operator.desired.context import Backend, Facts

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "sqlite-store"
STATUS_KEY = "status-key-of-at-least-twenty-characters"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder into which pip has built and installed the package, on the path of this process."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    # memplane itself is there already, and so is the build backend: nothing is fetched.
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--target", str(target), str(source)], check=True)
    sys.path.insert(0, str(target))
    importlib.invalidate_caches()
    yield target
    sys.path.remove(str(target))
    for name in [name for name in sys.modules if name.partition(".")[0] == "memplane_sqlite"]:
        del sys.modules[name]


def test_its_own_tests_pass_the_whole_suite(installed: Path, tmp_path: Path) -> None:
    """The package's tests (`memplane.conformance` on the store), run as its README says, where no repository is."""
    tests = shutil.copytree(EXAMPLE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", str(tests)]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout


def test_its_options_are_checked_like_those_of_built_in_plugins(installed: Path) -> None:
    with pytest.raises(SettingsError, match=r"store\.options of 'sqlite': .*give path or path_file"):
        create_store("sqlite", {}, Resources())
    with pytest.raises(SettingsError, match=r"store\.options of 'sqlite': file: Extra inputs"):
        create_store("sqlite", {"path": "x", "file": "y"}, Resources())
    with pytest.raises(SettingsError, match=r"unknown store plugin 'sqlit'; known: .*sqlite"):
        create_store("sqlit", {}, Resources())


def manifests() -> tuple[dict[str, Any], Backend]:
    """The Secret and the `MemoryBackend` of the example."""
    secret, resource = yaml.safe_load_all((EXAMPLE / "memorybackend.yaml").read_text())
    spec = MemoryBackendSpec.model_validate(resource["spec"])
    return secret, Backend(resource["metadata"]["name"], "agents", "uid-1", 1, spec)


def mount(backend: Backend, secret: dict[str, Any], key_file: str, folder: Path) -> Path:
    """What the pod of the service sees, below `folder`: its settings file, and its Secrets as files."""
    desired = build(backend, Facts(operator_image="memplane:test"))
    assert desired.migration is None
    [config_map] = [one for one in desired.foundation if one["kind"] == "ConfigMap"]
    [deployment] = [one for one in desired.rollout if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["serve"]
    [mounted] = [volume["projected"]["sources"] for volume in pod["volumes"] if "projected" in volume]
    contents = {secret["metadata"]["name"]: secret["stringData"]}
    contents["notes-api-key"] = {"keys.yaml": key_file}
    contents["notes-status-key"] = {"key": STATUS_KEY}
    for source in (one["secret"] for one in mounted):
        for item in source["items"]:
            path = folder / "secrets" / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(contents[source["name"]][item["key"]])
    settings = folder / "memplane.yaml"
    settings.write_text(config_map["data"]["memplane.yaml"].replace(SECRET_PATH, str(folder / "secrets")))
    return settings


def test_a_memory_backend_that_chooses_it_serves(installed: Path, tmp_path: Path) -> None:
    secret, backend = manifests()
    secret["stringData"]["path"] = str(tmp_path / "memories.db")  # /tmp is the pod's own, and this machine's is not
    key, entry = new_key(tenant="default", users="*", roles=[Role.READER, Role.WRITER])
    settings = mount(backend, secret, render_key_file(KeyFile(keys=[entry])), tmp_path)
    variables = {
        "PYTHONPATH": str(installed),
        "MEMPLANE_SERVICE__HOST": "127.0.0.1",  # the pod listens on its own address
        "MEMPLANE_SERVICE__PORT": "0",
    }
    with child(settings, tmp_path / "log", "serve", variables=variables) as running:
        wait_ready(running.url)
        headers = {"Authorization": f"Bearer {key}", "X-Memory-User": "ann"}
        with httpx.Client(base_url=running.url, headers=headers) as http:

            def node(name: str, document: dict[str, Any]) -> dict[str, Any]:
                answer: dict[str, Any] = http.post(f"/v1/nodes/MEMORY.{name}", json=document).json()
                return answer

            [written] = node("WRITE", {"memories": [{"key": "a", "content": {"text": "remote"}}]})["output"]
            assert node("GET", {"keys": ["a"]})["output"] == [written]
            assert node("SEARCH", {"query": "remote"})["error"]["code"] == "SEARCH_UNAVAILABLE"
            promised = http.get("/v1/capabilities").json()
            assert promised["store"]["plugin"] == "sqlite"
            assert promised["store"]["filters"] == []
            assert promised["search"] == {"plugin": "native", "strategies": []}
        status = httpx.get(f"{running.url}/v1/admin/status", headers={"Authorization": f"Bearer {STATUS_KEY}"}).json()
        assert status["store"]["ok"] is True  # what the operator writes as StoreReachable
        assert running.end() == 0
    assert (tmp_path / "memories.db").exists()
