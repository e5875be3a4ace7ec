"""The demo's corpus: nothing of the texts is lost, keys are unique, passages stay readable."""

from __future__ import annotations

import re

from demo.corpus import LIMIT, TOPICS, chapters, passages, see_also


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def test_every_character_of_a_topic_is_in_its_headings_and_passages() -> None:
    for topic in ("assert", "typesmapping", "formatstrings"):
        parts = [passage.text for passage in passages({topic: TOPICS[topic]})]
        source = squeezed(TOPICS[topic])
        position = 0
        for part in parts:
            position = source.index(squeezed(part), position) + len(squeezed(part))
        left = len(source) - sum(len(squeezed(part)) for part in parts)
        headings = {passage.heading for passage in passages({topic: TOPICS[topic]})}
        assert left <= sum(4 * len(heading) for heading in headings) + 200


def test_keys_are_unique_and_passages_have_a_readable_length() -> None:
    found = passages()
    assert len({passage.key for passage in found}) == len(found) > 500
    assert all(0 < len(passage.text) <= LIMIT + 200 for passage in found)
    assert all(passage.heading for passage in found)


def test_headings_never_end_up_in_the_middle_of_a_passage() -> None:
    text = "First\n*****\n\none\n\nSecond\n======\n\ntwo\n\nthree"
    assert [(p.heading, p.text) for p in passages({"t": text})] == [("First", "one"), ("Second", "two\n\nthree")]


def test_references_join_existing_topics() -> None:
    pairs = see_also()
    assert ("assert", "assert") not in pairs
    assert len(pairs) > 30
    assert all(source in TOPICS and target in TOPICS for source, target in pairs)


def test_neighbours_share_their_topic() -> None:
    assert all(b.number == a.number + 1 and a.topic == b.topic for a, b in chapters(passages()))
