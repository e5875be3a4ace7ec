"""The blocks of `docs/runtime.md` run, one after the other, as a reader would type them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import CodeType
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runtime.md"


async def test_every_block_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks, 1):
        code: CodeType = compile(block, f"runtime.md, block {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        outcome = eval(code, names)
        if outcome is not None:
            await outcome
