"""The pipeline of the page about plugins, run as it is printed there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.retrieval.fakes import Embedding, Provider

from memplane.contracts import Scope
from memplane.nodes import create_memory
from memplane.plugins.inmemory import InMemoryBackend

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"


def memory(id: str, text: str) -> dict[str, Any]:
    return {"id": id, "content": {"id": id, "content": text}}


async def test_the_printed_pipeline_searches() -> None:
    [program] = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "pipeline" in code]
    first, second = memory("1", "otters"), memory("2", "owls")

    class Contents(Embedding):
        async def embed(self, contents: Any, **options: Any) -> Any:
            return [[1.0, 0.0] if "otter" in str(content) else [0.0, 1.0] for content in contents]

    names: dict[str, Any] = {
        "my_index": Provider((second, first)),
        "my_words": Provider((first,)),
        "embedding": Contents({}, dimensions=2),
        "store": InMemoryBackend().scoped(Scope("acme", "ada")),
        "create_memory": create_memory,
    }
    exec(program, names)
    hits = (await names["memory"].search({"query": "otters"})).unwrap()
    assert [hit["memory"]["content"] for hit in hits] == ["otters", "owls"]
    assert hits[0]["score"] == 1.0
