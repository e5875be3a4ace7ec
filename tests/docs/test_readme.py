"""What the README shows a first user works when it is pasted."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from demo.service import port_to_use, running

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def snippet(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(found)


def test_the_python_example_runs(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", snippet("python")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "1 1"
    assert "green tea" in lines[1]
    assert "Ada moved to Lisbon in May." in lines
    assert lines[-1] == "{'deleted': ['1']}"


@pytest.mark.slow
async def test_the_curl_example_runs_against_the_embedded_service(tmp_path: Path) -> None:
    async with running(tmp_path / "data", port_to_use(0)) as client:
        script = snippet("sh").replace("http://127.0.0.1:8080", client.url)
        assert client.url in script
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-euo",
            "pipefail",
            "-c",
            script,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "no_proxy": "127.0.0.1"},
        )
        output = (await asyncio.wait_for(process.communicate(), 60))[0].decode()
    lines = output.splitlines()
    assert process.returncode == 0, output
    assert len(lines) == 5, output
    assert all('"status":"success"' in line for line in lines), output
    assert all("green tea" in line for line in lines[:4]), output
    assert '"deleted":["1"]' in lines[4]
