"""memplane as a child process, the way a pod runs it: settings in a file, a signal at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from pydantic import BaseModel, SecretStr

from memplane.settings import Settings


def write_settings(settings: Settings, path: Path) -> Path:
    """The settings as a YAML file, secrets in clear: what a mounted Secret and a ConfigMap hold together."""
    path.write_text(yaml.safe_dump(_plain(settings)))
    path.chmod(0o600)
    return path


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


@dataclass
class Child:
    """A running command; its log is JSON lines."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    def lines(self) -> list[dict[str, Any]]:
        text = self.log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def end(self, number: int = signal.SIGTERM, seconds: float = 30) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)


@contextmanager
def child(config: Path, log: Path, *command: str, variables: Mapping[str, str] | None = None) -> Iterator[Child]:
    """A command that serves, started and listening; killed at the end if it still runs.

    `variables` of the environment are added to the developer's, whose MEMPLANE_ variables are not passed on.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")}
    environment |= variables or {}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "memplane", "--config", str(config), *command],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    running = Child(process, log)
    try:
        running.url = _listening(running)
        yield running
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _listening(running: Child, seconds: float = 60) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for line in running.lines():
            if line["message"] == "listening":
                return str(line["url"])
        assert running.process.poll() is None, running.log.read_text()
        time.sleep(0.05)
    raise AssertionError(running.log.read_text())


def wait_ready(url: str, seconds: float = 60) -> None:
    """Wait until `/readyz` is 200."""
    end = time.monotonic() + seconds
    while httpx.get(f"{url}/readyz", timeout=10).status_code != 200:
        assert time.monotonic() < end, httpx.get(f"{url}/readyz", timeout=10).text
        time.sleep(0.1)
