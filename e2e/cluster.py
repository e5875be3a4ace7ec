"""The cluster that the tests run on.

`MEMPLANE_E2E_CONTEXT` names a kubectl context to use, and no other; the image under test must then be reachable there
under the name in `MEMPLANE_E2E_IMAGE`. Otherwise a kind cluster is made (or found): by the scripts in the folder that
`MEMPLANE_CLUSTER_SCRIPTS` names, which can do so without a registry, or by `kind` and `docker` themselves. The image is
built from this tree, unless `MEMPLANE_E2E_IMAGE` names one that is in the cluster already.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = os.environ.get("MEMPLANE_E2E_CLUSTER", "memplane")
RELEASE, SYSTEM = "memplane", "memplane-e2e"
"""Name and namespace of the Helm release under test."""
SOURCES = ("Dockerfile", "pyproject.toml", "requirements-image.lock", "README.md", "service", "operator")


class ClusterError(RuntimeError):
    """The cluster cannot be had; the message says what to do."""


@dataclass(frozen=True, slots=True)
class E2ECluster:
    """How to reach the cluster, the image under test, and whether images come without a registry."""

    environment: dict[str, str]
    context: str
    repository: str
    tag: str
    scripted: bool

    def run(
        self, *command: str, timeout: float = 600, check: bool = True, environment: dict[str, str] | None = None
    ) -> str:
        """A command against the cluster; its output. Raises `ClusterError` with the end of it when it fails."""
        done = subprocess.run(
            command,
            env=environment or self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise ClusterError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def kubectl(self, *arguments: str, timeout: float = 600, check: bool = True) -> str:
        return self.run("kubectl", "--context", self.context, *arguments, timeout=timeout, check=check)

    def helm(self, *arguments: str, timeout: float = 600) -> str:
        return self.run("helm", "--kube-context", self.context, *arguments, timeout=timeout)


def source_tag() -> str:
    """A tag that changes with what goes into the image."""
    digest = hashlib.sha256()
    for name in SOURCES:
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return f"e2e-{digest.hexdigest()[:12]}"


IMAGES = ("python", "postgres", "milvus", "neo4j", "keda")


def _scripts() -> Path | None:
    named = os.environ.get("MEMPLANE_CLUSTER_SCRIPTS")
    return Path(named) if named else None


def _call(*command: str, environment: dict[str, str] | None = None, timeout: float = 2400) -> str:
    done = subprocess.run(
        command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, timeout=timeout, check=False
    )
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed with {done.returncode}")
    return done.stdout


def _scripted(scripts: Path) -> dict[str, str]:
    """Bring the cluster and the databases' images up with the scripts; the environment they want."""
    named = {**os.environ, "CLUSTER_NAME": NAME}
    sys.stderr.write(_call(str(scripts / "up"), environment=named))
    sys.stderr.write(_call(str(scripts / "images"), *IMAGES, environment=named))
    exported = _call("bash", "-c", f'eval "$({scripts / "env"})"; env -0', environment=named)
    environment = dict(line.split("=", 1) for line in exported.split("\0") if "=" in line)
    _install_keda(scripts, environment)
    return environment


def _install_keda(scripts: Path, environment: dict[str, str]) -> None:
    """KEDA, serving. Pods that outlived a restart of the node may hold dead connections: they start anew."""
    install = str(scripts / "addons" / "keda")
    try:
        sys.stderr.write(_call(install, environment=environment))
    except ClusterError:
        _call("kubectl", "--context", f"kind-{NAME}", "-n", "keda", "delete", "pod", "--all", environment=environment)
        sys.stderr.write(_call(install, environment=environment))


def ensure_metrics(cluster: E2ECluster) -> None:
    """The cluster measures the CPU of pods: metrics-server, installed where the scripts made the cluster.

    Raises `ClusterError` when another cluster serves no `metrics.k8s.io`.
    """
    scripts = _scripts()
    if cluster.scripted and scripts is not None:
        sys.stderr.write(_call(str(scripts / "addons" / "metrics-server"), environment=cluster.environment))
    try:
        cluster.kubectl("get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes")
    except ClusterError as error:
        raise ClusterError(
            f"the cluster serves no metrics.k8s.io, by which a service scales on CPU: install metrics-server\n{error}"
        ) from None


def ensure() -> E2ECluster:
    """The cluster with the image under test in it."""
    context = os.environ.get("MEMPLANE_E2E_CONTEXT")
    repository, _, named = os.environ.get("MEMPLANE_E2E_IMAGE", "").rpartition(":")
    if context:
        if not repository:
            raise ClusterError(
                "MEMPLANE_E2E_IMAGE must name the image under test, with a tag, for MEMPLANE_E2E_CONTEXT"
            )
        return E2ECluster(dict(os.environ), context, repository, named, scripted=False)
    tag, scripts = named or source_tag(), _scripts()
    image = f"{repository or 'memplane'}:{tag}"
    if scripts is not None:
        environment = _scripted(scripts)
        if not named:
            _call(str(scripts / "build-image"), str(ROOT), image, environment=environment)
        return E2ECluster(environment, f"kind-{NAME}", image.rpartition(":")[0], tag, scripted=True)
    for tool in ("kind", "docker", "kubectl", "helm"):
        if shutil.which(tool) is None:
            raise ClusterError(f"{tool} is not on PATH: install it, or name a cluster by MEMPLANE_E2E_CONTEXT")
    if NAME not in _call("kind", "get", "clusters").split():
        _call("kind", "create", "cluster", "--name", NAME, "--wait", "180s")
    if not named:
        _call("docker", "build", "-t", image, ".")
        _call("kind", "load", "docker-image", image, "--name", NAME)
    return E2ECluster(dict(os.environ), f"kind-{NAME}", image.rpartition(":")[0], tag, scripted=False)


if __name__ == "__main__":
    found = ensure()
    print(f"{found.context}: image {found.repository}:{found.tag}")
