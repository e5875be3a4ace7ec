"""What a client did and what it was told, as JSON lines: one when a call begins, one when its answer is there.

A call whose second line is missing has no answer: the client died, or never heard. Times are `time.monotonic()`, which
all processes of a machine share and no skewed clock changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO


class Kind(StrEnum):
    WRITE = "write"
    UPDATE = "update"
    DELETE = "delete"
    GET = "get"
    SEARCH = "search"


class Outcome(StrEnum):
    """What a client knows afterwards."""

    OK = "ok"
    REFUSED = "refused"
    """It was told that nothing happened."""
    UNKNOWN = "unknown"
    """It got no answer, or one that leaves open whether the change was stored."""


@dataclass(slots=True)
class Operation:
    """One call. `request` and `result` by kind:

    - write: [{content, key?}] → [{id, version}]
    - update: [{id, content, expectedVersion?}] → [{id, version}]
    - delete: [{id, expectedVersion?}] → [{id}], those that were live
    - get: [{id}] → [{id, version, content}], those that are there
    - search: [] → [{id, version, content}]

    `code` is the error's code, empty without one. Contents are unique, so a content names the call it came from.
    """

    id: str
    kind: Kind
    began: float
    request: list[dict[str, Any]]
    user: str = ""
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    code: str = ""
    result: list[dict[str, Any]] = field(default_factory=list)


class Journal:
    """The file of one client. Lines are written at once, so that a killed client leaves what it knew."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)

    def begin(self, operation: Operation) -> None:
        self._write(
            id=operation.id,
            kind=operation.kind,
            began=operation.began,
            user=operation.user,
            request=operation.request,
        )

    def end(self, operation: Operation, outcome: Outcome, *, code: str = "", result: Any = ()) -> None:
        """Note the answer, now."""
        operation.ended, operation.outcome, operation.code = time.monotonic(), outcome, code
        operation.result = list(result)
        self._write(id=operation.id, ended=operation.ended, outcome=outcome, code=code, result=operation.result)

    def _write(self, **line: Any) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


def read_journals(paths: Iterable[Path]) -> list[Operation]:
    """All calls of all clients, in the order in which they began."""
    found = [operation for path in paths for operation in _read(path)]
    return sorted(found, key=lambda operation: operation.began)


def _read(path: Path) -> Iterator[Operation]:
    calls: dict[str, Operation] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue  # the last line of a client that was killed
        if "kind" in line:
            calls[line["id"]] = Operation(line["id"], Kind(line["kind"]), line["began"], line["request"], line["user"])
        else:
            call = calls[line["id"]]
            call.ended, call.outcome, call.code = line["ended"], Outcome(line["outcome"]), line["code"]
            call.result = line["result"]
    yield from calls.values()
