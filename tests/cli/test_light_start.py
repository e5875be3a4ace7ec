"""A command that serves nothing starts without what serves."""

from __future__ import annotations

import subprocess
import sys


def test_the_command_line_imports_no_web_framework_and_no_driver_of_a_projection() -> None:
    code = (
        "import sys, memplane.cli.app; print(sorted({'fastapi', 'starlette', 'pymilvus', 'neo4j'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
