"""mem0 with `infer=False`. `python -m bench.peers.mem0_store FOLDER [DSN]`: on pgvector there, else on its default.

Its default is Qdrant in a folder and in the process itself: its memories are held in the process' memory.

The language model that it insists on is never called; embeddings are the given ones. Telemetry is off.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["MEM0_TELEMETRY"] = "False"
os.environ["MEM0_DIR"] = str(Path(sys.argv[1]) / "mem0")
os.environ["OPENAI_API_KEY"] = "never used"

from mem0 import Memory

from bench.peers.serve import Calls, Inputs, serve

USER = "reader"
DIMENSIONS = 384


class Given:
    """The given embedding of each text."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        return self._inputs.vector(text)

    def embed_batch(self, texts: list[str], memory_action: str | None = None) -> list[list[float]]:
        return [self._inputs.vector(text) for text in texts]


class Mem0(Calls):
    def __init__(self, inputs: Inputs, memory: Memory) -> None:
        self._inputs = inputs
        self._memory = memory
        self._ids: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def put(self, number: int) -> None:
        metadata = {"category": f"category-{number % 20}", "importance": (number % 10) / 10}
        added = self._memory.add(self._inputs.texts[number], user_id=USER, infer=False, metadata=metadata)
        self._ids[number] = added["results"][0]["id"]
        self._numbers[self._ids[number]] = number

    def forget(self) -> None:
        """Remove everything."""
        self._memory.delete_all(user_id=USER)

    def get(self, number: int) -> str:
        return str(self._memory.get(self._ids[number])["memory"])

    def search(self, number: int, limit: int) -> list[int]:
        found = self._memory.search(self._inputs.texts[number], top_k=limit, filters={"user_id": USER}, threshold=0.0)
        return [self._numbers[one["id"]] for one in found["results"]]


def main() -> None:
    folder = Path(sys.argv[1])
    inputs = Inputs(folder)
    common = {"collection_name": "bench", "embedding_model_dims": DIMENSIONS}
    if len(sys.argv) > 2:
        store = {"provider": "pgvector", "config": {**common, "connection_string": sys.argv[2], "hnsw": True}}
    else:
        store = {"provider": "qdrant", "config": {**common, "path": str(folder / "qdrant"), "on_disk": True}}
    memory = Memory.from_config({"vector_store": store, "history_db_path": str(folder / "history.db")})
    memory.embedding_model = Given(inputs)
    serve(Mem0(inputs, memory))


if __name__ == "__main__":
    main()
