"""Two independent implementations of one contract: whatever is done to both, they answer the same."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from tests.plugins.postgres.properties import holds
from tests.plugins.postgres.test_agrees_with_inmemory import Side, drafts, operations

from memplane.contracts import Scope
from memplane.nodes import create_memory
from memplane.plugins.inmemory import InMemoryBackend
from memplane.plugins.mysql.backend import MysqlBackend


@pytest.mark.slow
async def test_both_stores_answer_the_same(backend: MysqlBackend) -> None:
    async def check(history: list[tuple[str, Any]]) -> None:
        scope = Scope("acme", str(uuid4()))
        left = Side(create_memory(store=backend.scoped(scope)))
        right = Side(create_memory(store=InMemoryBackend().scoped(scope)))
        for operation in history:
            assert await left.apply(operation) == await right.apply(operation), operation

    writes = st.tuples(st.just("write"), st.lists(drafts, min_size=1, max_size=4))
    histories = st.builds(lambda first, rest: [*first, *rest], st.tuples(writes, writes), st.lists(operations))
    await holds(histories, check, examples=60)
