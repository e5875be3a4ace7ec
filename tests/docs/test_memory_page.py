"""The blocks of `docs/memory.md` run, and none of the API's examples is missing."""

from __future__ import annotations

import pytest
from tests.docs.blocks import blocks, run_blocks

EXAMPLES = (
    "create_memory(",
    "create_memory_worker(",
    "memory.get(",
    "memory.query(",
    "memory.search(",
    "memory.write(",
    "memory.update(",
    "memory.delete(",
    "memory.execute(",
    "PluginError(",
    "class Adapted",
    "graph(",
    "memory_get_node.define(",
    "Signal.timeout(",
    "RemoteRetrievalSearchProvider(",
    "runtime.close()",
)
"""What each example of the seed's list is about (seed 000, "examples by API")."""


async def test_every_block_runs() -> None:
    assert await run_blocks("memory.md", {}) >= 15


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_part_of_the_api_has_its_example(example: str) -> None:
    assert any(example in block for block in blocks("memory.md")), example
