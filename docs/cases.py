"""The page that maps behaviour cases to the tests that carry their numbers. Part of `make docs`.

A test carries a case's number at the start of its name: `test_rt03_…`, or several: `test_m63_m64_…`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"

SECTIONS = {
    "m": ("MEMORY nodes", 66),
    "r": ("RETRIEVAL and the bridges to MEMORY", 33),
    "rt": ("Runtime: workers, routing, calls, close, events, artifacts", 18),
    "h": ("Transports", 13),
    "c": ("Configuration", 9),
    "g": ("Graphs", 13),
    "k": ("Checkpoints", 5),
    "l": ("Loops", 12),
    "x": ("CONTEXT", 15),
    "i": ("INFER", 10),
    "t": ("INTERACTION", 7),
    "s": ("Sandbox", 4),
    "v": ("Recovery: fingerprints, the shared flow and its eight entries", 32),
    "f": ("Recovery: the reference service", 13),
    "j": ("Recovery: store and tools", 14),
}
"""Prefix of the numbers, what they are about, how many there are."""

BY_CONFORMANCE = {("m", 66): ("memplane/conformance/flow.py", "every store plugin's suite runs it")}
"""Cases that the public conformance suite checks, unchanged for every store."""

_TEST = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)
_NUMBERS = re.compile(r"test((?:_[a-z]{1,2}\d\d)+)_")


def cases_page(note: str) -> str:
    """The whole page. A case without a test is a `KeyError`."""
    tests = numbered_tests()
    lines = [
        "# Behaviour cases and their tests",
        note,
        "The behaviour of nodes, runtime and workers is fixed case by case; every case has a number, and the tests of",
        "a case carry it in their names.",
    ]
    for prefix, (title, count) in SECTIONS.items():
        lines += ["", f"## {title}", "", "| case | tests |", "|---|---|"]
        for number in range(1, count + 1):
            key = (prefix, number)
            found = tests.get(key) or [BY_CONFORMANCE[key]]
            cell = "<br>".join(f"`{path}`: `{name}`" for path, name in found)
            lines.append(f"| {prefix.upper()}-{number:02} | {cell} |")
    return "\n".join(lines) + "\n"


def numbered_tests() -> dict[tuple[str, int], list[tuple[str, str]]]:
    """(file below `tests/`, test name) by (prefix, number)."""
    found: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for path, name in _tests():
        match = _NUMBERS.match(name)
        for label in match[1].strip("_").split("_") if match else ():
            found.setdefault((label[:-2], int(label[-2:])), []).append((path, name))
    return found


def _tests() -> Iterator[tuple[str, str]]:
    for file in sorted(TESTS.rglob("test_*.py")):
        for name in _TEST.findall(file.read_text(encoding="utf-8")):
            yield file.relative_to(TESTS).as_posix(), name
