"""What to do with one task, given what the target holds: the version rules of seed `002` section 9, without I/O."""

from __future__ import annotations

from dataclasses import dataclass

from memplane.outbox.events import Task, Verdict


@dataclass(frozen=True, slots=True)
class Held:
    """What a target holds of one memory. `version` is None for an object that was made without one (by hand)."""

    version: int | None
    projection_hash: str


@dataclass(frozen=True, slots=True)
class Decision:
    """`write` tells whether the target is to be changed: overwritten for live truth, deleted for dead."""

    write: bool
    verdict: Verdict


def decide_upsert(held: Held | None, *, version: int, projection_hash: str, repair: bool) -> Decision:
    """Older or absent: write. Same version and hash: nothing to do. Same version, other hash: conflict, the truth wins.

    Newer than the truth (a restored database): only a repair overwrites it. A repair always writes, since an edit by
    hand may have left version and hash as they were.
    """
    if held is None or held.version is None or held.version < version:
        return Decision(True, Verdict.APPLIED)
    if held.version > version:
        return Decision(repair, Verdict.AHEAD)
    if held.projection_hash != projection_hash:
        return Decision(True, Verdict.CONFLICT)
    return Decision(repair, Verdict.APPLIED if repair else Verdict.UNCHANGED)


def decide_delete(held: Held | None, *, version: int, repair: bool) -> Decision:
    """Deleted up to `version`, the version of the delete; a newer object stays, unless a repair removes it.

    What was not seen is deleted all the same, since the read may have been a little behind.
    """
    if held is None:
        return Decision(True, Verdict.UNCHANGED)
    if held.version is not None and held.version > version:
        return Decision(repair, Verdict.AHEAD)
    return Decision(True, Verdict.APPLIED)


def delete_version(task: Task) -> int:
    """The version up to which a dead memory's object is deleted. A purged row has none, so the event's stands in."""
    return max(task.truth.version, task.event.version)
