"""`python -m experiments`: build the wheel, install it into a clean environment outside the repository, run there."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from experiments.locked import locked_requirements

ROOT = Path(__file__).resolve().parent.parent
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")

IMPORT_CHECK = """
import os, threading
before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
import memplane, memplane.recovery, memplane.runtime, memplane.workers
after = set(os.listdir("/proc/self/fd")) if before else set()
assert "site-packages" in memplane.__file__, memplane.__file__
assert threading.active_count() == 1, threading.enumerate()
assert len(after) == len(before), "a file or socket was opened"
assert os.listdir(".") == [], os.listdir(".")
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    pass
else:
    raise AssertionError("a process was started")
"""


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def call(python: Path | str, *arguments: str, cwd: Path) -> None:
    subprocess.run([str(python), *arguments], cwd=cwd, check=True)  # noqa: S603


def install(work: Path) -> Path:
    """The python of a fresh environment with the built wheel and, by the lock's hashes, what it needs."""
    say("building the wheel")
    wheels = work / "wheels"
    call(sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(ROOT), cwd=work)
    say("making a clean environment")
    venv.create(work / "venv", with_pip=True)
    python = work / "venv" / "bin" / "python"
    requirements = work / "requirements.txt"
    requirements.write_text(locked_requirements(ROOT / "requirements.lock", "openai"), encoding="utf-8")
    call(python, *PIP, "install", "--require-hashes", "--no-deps", "-r", str(requirements), cwd=work)
    (wheel,) = wheels.glob("memplane-*.whl")
    call(python, *PIP, "install", "--no-deps", "--no-index", str(wheel), cwd=work)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="run only experiments whose names hold one of these")
    parser.add_argument("--keep", action="store_true", help="leave the folders of the experiments")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="memplane-experiments-"))
    try:
        python = install(work)
        empty = work / "empty"
        empty.mkdir()
        call(python, "-I", "-c", IMPORT_CHECK, cwd=empty)
        say("importing it starts nothing; running the experiments")
        shutil.copytree(ROOT / "experiments", work / "experiments", ignore=shutil.ignore_patterns("__pycache__"))
        tasks = work / "tasks"
        tasks.mkdir()
        command = [str(python), "-m", "experiments.run", str(tasks), *arguments.words]
        return subprocess.run(command, cwd=work, check=False).returncode  # noqa: S603
    finally:
        if arguments.keep:
            say(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
