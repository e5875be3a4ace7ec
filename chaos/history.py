"""Does the truth explain every answer, and every answer the truth? Pure: journals and rows in, breaches out.

A change is *told* when its answer says that it was stored, *open* when there was no answer. The rules:

- lost: what was written has its row; no told version is above the row's.
- forked: no version was told twice, no memory was deleted twice, a told version follows the expected one.
- resurrected: after a told delete the row stays a tombstone, and nothing that began later changes or sees the memory.
- invented: a row's content comes from the change that was told its version, or from an open one; a tombstone has a
  delete that was told or is open; every version has a change that accounts for it, every row a write.
- torn: of a batch all memories exist or none.
- unfounded: a CONFLICT has a reason: a newer version, or another holder of the key.
- stale: a read shows no older version than what was told or seen before it began, misses no memory that nobody
  deleted, and shows nothing of a call that began after the read had ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from chaos.journal import Kind, Operation, Outcome
from chaos.lives import Life, Row, lives_of


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that does not hold, and the memory (or key) that shows it."""

    rule: str
    subject: str
    text: str


def check_history(calls: Sequence[Operation], rows: Sequence[Row]) -> list[Breach]:
    """Every breach; an empty list means that the service kept its word. `rows` are read once all is at rest."""
    by_id = {row.id: row for row in rows}
    breaches = [*_batches(calls, rows), *_keys(calls, rows)]
    lives = lives_of(calls, rows)
    for memory, life in lives.items():
        row = by_id.get(memory)
        found = _without_row(life) if row is None else _with_row(life, row)
        breaches += [Breach(rule, memory, text) for rule, text in found]
    made = {call.id for call in calls if call.kind is Kind.WRITE and call.outcome is not Outcome.REFUSED}
    breaches += [
        Breach("invented", row.id, f"no write that may have been stored made it: {row.origin!r}")
        for row in rows
        if row.origin not in made
    ]
    return breaches


Found = Iterator[tuple[str, str]]
"""Rule and text."""


def _without_row(life: Life) -> Found:
    if life.told or life.seen or life.deleted:
        yield "lost", "it was written or seen, and there is no row of it"


def _with_row(life: Life, row: Row) -> Found:
    yield from _versions(life, row)
    yield from _ending(life, row)
    yield from _after_delete(life)
    yield from _conflicts(life, row)
    yield from _reads(life)


def _versions(life: Life, row: Row) -> Found:
    told = Counter(change.version for change in life.told if change.version is not None)
    for version, count in told.items():
        if count > 1:
            yield "forked", f"version {version} was told to {count} calls"
    last = row.version if row.live else row.version - 1
    if (highest := max(told, default=0)) > last:
        yield "lost", f"version {highest} was told, the row's last content is of version {last}"
    for change in life.told:
        if change.expected is not None and change.version != change.expected + 1:
            yield "forked", f"a call expected version {change.expected} and was told {change.version}"
    if len(life.deleted) > 1:
        yield "forked", f"{len(life.deleted)} calls were told that they deleted it"
    # Each open write put several contents among the open changes, but made one version of this memory.
    open_calls = {change.call.id for change in life.open} | {call.id for call in life.deletes_open}
    accounted = len(told) + len(open_calls) + len(life.deleted)
    if row.version > accounted:
        yield "invented", f"the row has version {row.version}, and only {accounted} changes may have been stored"


def _ending(life: Life, row: Row) -> Found:
    """How the row came to be what it is."""
    if life.deleted and row.live:
        yield "resurrected", f"{life.deleted[0].id} was told that it deleted it, and it is live"
    if not row.live and not life.deleted and not life.deletes_open:
        yield "invented", "it is a tombstone, and nobody deleted it"
    # The delete took the last version, the content is of the one before; an expected version may be anything below.
    last = row.version if row.live else row.version - 1
    told = next((change for change in life.told if change.version == last), None)
    if told is not None:
        if told.content != row.content:
            yield "lost", f"{told.call.id} was told version {last}, the row has the content {row.content!r}"
        return
    cause = next((change for change in life.open if change.content == row.content), None)
    if cause is None:
        yield "invented", f"the content {row.content!r} of version {last} is of no call that may have been stored"
    elif cause.expected is not None and cause.expected + 1 != last:
        yield "forked", f"{cause.call.id} expected version {cause.expected} and made {last}"


def _after_delete(life: Life) -> Found:
    if not life.deleted:
        return
    gone = min(call.ended for call in life.deleted)
    for change in life.told:
        if change.call.began > gone:
            yield "resurrected", f"{change.call.id} was told a change that began after the delete was told"
    for sight in life.seen:
        if sight.call.began > gone:
            yield "resurrected", f"{sight.call.id} saw version {sight.version} after the delete was told"


def _conflicts(life: Life, row: Row) -> Found:
    for change in life.conflicts:
        if row.live and change.expected == row.version:
            yield "unfounded", f"{change.call.id} expected version {row.version}, which it still has, and was refused"


def _reads(life: Life) -> Found:
    """Real time: what ended before a read began is the least that it shows."""
    ends = sorted(
        [(change.call.ended, change.version or 0) for change in life.told]
        + [(sight.call.ended, sight.version) for sight in life.seen]
    )
    times = [ended for ended, _ in ends]
    least = [0, *accumulate((version for _, version in ends), max)]
    contents = {change.version: change for change in life.told}
    possible = {change.content: change.call for change in [*life.told, *life.open]}
    for sight in life.seen:
        known = least[bisect_left(times, sight.call.began)]
        if sight.version < known:
            yield "stale", f"{sight.call.id} saw version {sight.version} after {known} was known"
        told = contents.get(sight.version)
        source = possible.get(sight.content)
        if (told is not None and told.content != sight.content) or source is None:
            yield "invented", f"{sight.call.id} saw version {sight.version} with {sight.content!r}"
        elif source.began > sight.call.ended:
            yield "stale", f"{sight.call.id} saw what {source.id} had not yet asked for"
    yield from _misses(life, times)


def _misses(life: Life, times: Sequence[float]) -> Found:
    """A read that did not find the memory: somebody must have deleted it, and nobody sees it afterwards."""
    deletes = [call.began for call in [*life.deleted, *life.deletes_open]]
    gone = float("inf")
    for call in life.missed:
        if not times or times[0] >= call.began:
            continue  # nobody knew of it yet
        gone = min(gone, call.ended)
        if not any(began < call.ended for began in deletes):
            yield "lost", f"{call.id} did not find it, and nobody had deleted it"
    for sight in life.seen:
        if sight.call.began > gone:
            yield "resurrected", f"{sight.call.id} saw it after another read had not found it"


def _batches(calls: Sequence[Operation], rows: Sequence[Row]) -> Iterator[Breach]:
    made = Counter(row.origin for row in rows)
    for call in calls:
        if call.kind is not Kind.WRITE or made[call.id] == len(call.request):
            continue
        if call.outcome is Outcome.OK:
            yield Breach("lost", call.id, f"{len(call.request)} memories were told, {made[call.id]} are there")
        elif call.outcome is Outcome.UNKNOWN and made[call.id]:
            yield Breach("torn", call.id, f"{made[call.id]} of {len(call.request)} memories are there")


def _keys(calls: Sequence[Operation], rows: Sequence[Row]) -> Iterator[Breach]:
    holders = Counter((row.user, row.key) for row in rows if row.live and row.key is not None)
    for (_, key), count in holders.items():
        if count > 1:
            yield Breach("forked", str(key), f"{count} live memories have this key")
    first: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
    for call in calls:
        if call.kind is Kind.WRITE and call.outcome is not Outcome.REFUSED:
            for draft in call.request:
                if draft.get("key") is not None:
                    first[call.user, draft["key"]].append(call)
    for call in calls:
        if call.kind is Kind.WRITE and call.code == "CONFLICT":
            keys = [(call.user, draft["key"]) for draft in call.request if draft.get("key") is not None]
            if not any(other.began < call.ended for key in keys for other in first[key]):
                yield Breach("unfounded", call.id, "its key was refused, and nobody else had asked for it")
