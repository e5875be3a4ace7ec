"""The side of a peer: reads requests as JSON lines, answers with the seconds that each call took.

Imports nothing of memplane, since it runs in the peers' own environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Inputs:
    """The texts and vectors of the run, by number; the same that memplane gets."""

    def __init__(self, folder: Path) -> None:
        self.texts: list[str] = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
        self._vectors = np.load(folder / "vectors.npy")
        self._numbers = {text: number for number, text in enumerate(self.texts)}

    def vector(self, text: str) -> list[float]:
        """The given embedding of a text."""
        return [float(value) for value in self._vectors[self._numbers[text]]]


class Calls:
    """What a peer offers; `number` names a text of the inputs."""

    def put(self, number: int) -> None:
        raise NotImplementedError

    def put_all(self, numbers: Sequence[int]) -> None:
        """In one call; peers without one are not asked."""
        raise NotImplementedError

    def get(self, number: int) -> str:
        """The text."""
        raise NotImplementedError

    def search(self, number: int, limit: int) -> list[int]:
        """The numbers of the nearest texts, best first."""
        raise NotImplementedError


def serve(calls: Calls) -> None:
    """Answer requests until the input ends."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(calls, json.loads(line))), flush=True)


def _answer(calls: Calls, request: dict[str, Any]) -> dict[str, Any]:
    method: Callable[..., Any] = getattr(calls, request["call"])
    seconds, answers = [], []
    for arguments in request["arguments"]:
        started = time.perf_counter()
        answer = method(*arguments)
        seconds.append(time.perf_counter() - started)
        answers.append(answer)
    return {"seconds": seconds, "answers": answers}
