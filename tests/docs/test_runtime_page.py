"""The blocks of `docs/runtime.md` run."""

from __future__ import annotations

from tests.docs.blocks import run_blocks


async def test_every_block_runs() -> None:
    assert await run_blocks("runtime.md", {}) >= 7
