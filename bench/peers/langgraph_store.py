"""LangGraph's PostgresStore. `python -m bench.peers.langgraph_store FOLDER PLAIN_DSN INDEXED_DSN`, the last may be "".

Two stores: one without vectors, which is also what is read, and one with a vector index of its own on pgvector.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from langgraph.store.base import PutOp
from langgraph.store.postgres import PostgresStore

from bench.peers.serve import Calls, Inputs, serve

NAMESPACE = ("bench", "reader")
DIMENSIONS = 384


class LangGraph(Calls):
    def __init__(self, inputs: Inputs, plain: PostgresStore, indexed: PostgresStore) -> None:
        self._inputs = inputs
        self._plain = plain
        self._indexed = indexed

    def _operation(self, number: int, *, index: bool) -> PutOp:
        value = {"text": self._inputs.texts[number], "category": f"category-{number % 20}"}
        return PutOp(NAMESPACE, str(number), value, ["text"] if index else False)

    def put(self, number: int) -> None:
        self.put_all([number])

    def put_all(self, numbers: Sequence[int]) -> None:
        self._indexed.batch([self._operation(number, index=True) for number in numbers])

    def put_plain(self, number: int) -> None:
        """Without a vector."""
        self.put_all_plain([number])

    def put_all_plain(self, numbers: Sequence[int]) -> None:
        """Without vectors."""
        self._plain.batch([self._operation(number, index=False) for number in numbers])

    def forget(self, numbers: Sequence[int]) -> None:
        """Remove them from what is searched."""
        self._indexed.batch([PutOp(NAMESPACE, str(number), None) for number in numbers])

    def get(self, number: int) -> str:
        item = self._plain.get(NAMESPACE, str(number))
        assert item is not None
        return str(item.value["text"])

    def search(self, number: int, limit: int) -> list[int]:
        found = self._indexed.search(NAMESPACE, query=self._inputs.texts[number], limit=limit)
        return [int(item.key) for item in found]


def main() -> None:
    folder, plain_dsn, indexed_dsn = sys.argv[1:]
    inputs = Inputs(Path(folder))
    if not indexed_dsn:
        with PostgresStore.from_conn_string(plain_dsn) as plain:
            plain.setup()
            serve(LangGraph(inputs, plain, plain))
        return
    index = {
        "dims": DIMENSIONS,
        "embed": lambda texts: [inputs.vector(text) for text in texts],
        "fields": ["text"],
    }
    with (
        PostgresStore.from_conn_string(plain_dsn) as plain,
        PostgresStore.from_conn_string(indexed_dsn, index=index) as indexed,
    ):
        plain.setup()
        indexed.setup()
        serve(LangGraph(inputs, plain, indexed))


if __name__ == "__main__":
    main()
