"""The corpus of the demo: the topic texts that every Python carries, cut into passages with keys and relations.

Pure: no I/O beyond importing the standard library's own data, so the same Python always gives the same passages.
"""

from __future__ import annotations

import pydoc
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pydoc_data.topics import topics as TOPICS  # noqa: N812 - a constant of the standard library

AIM = 700
"""Characters of a passage: a few sentences, small enough that a hit is read at a glance."""
LIMIT = 1400
"""A paragraph above this is cut at line ends."""

_UNDERLINE = re.compile(r"[*=~\-^]{3,}")


@dataclass(frozen=True, slots=True)
class Passage:
    """One memory of the demo. `key` is `topic/number`; number 0 opens its topic."""

    topic: str
    number: int
    heading: str
    text: str

    @property
    def key(self) -> str:
        return f"{self.topic}/{self.number}"


def passages(topics: Mapping[str, str] = TOPICS) -> list[Passage]:
    """All passages in the order of the topics' names."""
    found = []
    for topic in sorted(topics):
        for number, (heading, text) in enumerate(_cut(topics[topic])):
            found.append(Passage(topic, number, heading or topic, text))
    return found


def _cut(text: str) -> Iterator[tuple[str, str]]:
    """(heading, text) pairs: paragraphs joined up to `AIM` characters, never across a heading."""
    heading, held = "", ""
    for block in _paragraphs(text):
        title = _title(block)
        if title is not None or (held and len(held) + len(block) > AIM):
            if held:
                yield heading, held
            held = ""
        if title is not None:
            heading = title
        else:
            held = f"{held}\n\n{block}" if held else block
    if held:
        yield heading, held


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        held: list[str] = []
        for line in block.splitlines():
            if held and sum(map(len, held)) + len(line) > LIMIT:
                yield "\n".join(held)
                held = []
            held.append(line.rstrip())
        if any(held):
            yield "\n".join(held)


def _title(block: str) -> str | None:
    """The title of a paragraph that is one line and its underline, else None."""
    lines = block.splitlines()
    if len(lines) == 2 and _UNDERLINE.fullmatch(lines[1].strip()):
        return lines[0].replace('"', "").strip()
    return None


def see_also(topics: Mapping[str, str] = TOPICS) -> list[tuple[str, str]]:
    """Pairs of topics of which the first refers its reader to the second, as `help()` of Python does."""
    names = {name: entry[0] for name, entry in pydoc.Helper.topics.items() if isinstance(entry, tuple)}
    pairs = set()
    for entry in [*pydoc.Helper.topics.values(), *pydoc.Helper.keywords.values()]:
        if not isinstance(entry, tuple):
            continue
        source, references = entry
        for reference in references.split():
            target = names.get(reference, reference)
            if source in topics and target in topics and source != target:
                pairs.add((source, target))
    return sorted(pairs)


def chapters(found: list[Passage]) -> list[tuple[Passage, Passage]]:
    """Neighbouring passages of one topic, for the relation `next`."""
    return [(first, second) for first, second in pairwise(found) if first.topic == second.topic]
