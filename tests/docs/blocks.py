"""Running the Python blocks of a page, one after the other, as a reader would type them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import CodeType
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str) -> list[str]:
    """The Python blocks of a page below `docs/`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


async def run_blocks(page: str, names: dict[str, Any]) -> int:
    """Run all blocks in one namespace; returns how many there were."""
    found = blocks(page)
    for number, block in enumerate(found, 1):
        code: CodeType = compile(block, f"{page}, block {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        outcome = eval(code, names)
        if outcome is not None:
            await outcome
    return len(found)
