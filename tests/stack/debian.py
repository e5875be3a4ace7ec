"""A file of a Debian package, used without installing the package: nothing of it starts, nothing of it stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.stack.model import StackError
from tests.stack.process import cache_folder


def program(name: str, *, package: str) -> Path:
    """A program: the machine's own, else the package's."""
    found = shutil.which(name)
    return Path(found) if found is not None else file_of(package, f"usr/bin/{name}")


def file_of(package: str, pattern: str) -> Path:
    """The file of a package that matches a glob pattern; fetched the first time and kept outside the tree.

    Raises `StackError` when it cannot be fetched.
    """
    folder = cache_folder(f"debian-{package}")
    kept = folder / "files"
    if not kept.is_dir():
        _unpack(package, kept)
    found = sorted(kept.glob(pattern))
    if not found:
        raise StackError(f"the package {package} has no {pattern}")
    return found[0]


def _unpack(package: str, target: Path) -> None:
    hint = f"install the package {package} yourself, or run apt-get update"
    for name in ("apt-get", "dpkg-deb"):
        if shutil.which(name) is None:
            raise StackError(f"{package} cannot be fetched without {name}: {hint}")
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        got = _download(package, work)
        if got.returncode != 0 and os.geteuid() == 0:
            # A fresh machine has no lists of packages.
            subprocess.run(["apt-get", "-qq", "update"], capture_output=True)
            got = _download(package, work)
        archives = list(Path(work).glob("*.deb"))
        if got.returncode != 0 or not archives:
            raise StackError(f"{package} cannot be fetched: {hint}\n{got.stderr[-1000:]}")
        unpacked = Path(work) / "files"
        subprocess.run(["dpkg-deb", "-x", str(archives[0]), str(unpacked)], check=True, capture_output=True)
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # somebody else was faster otherwise
                raise


def _download(package: str, folder: str) -> subprocess.CompletedProcess[str]:
    command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)
