"""When a tombstone may go, case by case: seed `002` section 10.3. Without I/O."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane.outbox.events import Target
from memplane.purge.judge import Tombstone, Verdict, judge, settled
from memplane.settings import OutboxSettings, PurgeSettings, Settings

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
TARGETS = frozenset(Target)
GONE = Tombstone(
    memory_id=7,
    version=3,
    deleted_at=NOW - 50 * HOUR,
    settled_at=NOW - 49 * HOUR,
    unfinished=0,
    dead=0,
    reached=frozenset(),
    last_processed=None,
)
RUNS = {Target.MILVUS: NOW - 5 * HOUR, Target.NEO4J: NOW - 6 * HOUR}


def verdict(tombstone: Tombstone = GONE, **options: Any) -> Verdict:
    given: dict[str, Any] = {
        "now": NOW,
        "cutoff": NOW - 24 * HOUR,
        "targets": TARGETS,
        "runs": RUNS,
        "named": (),
        "shadow": False,
    }
    return judge(tombstone, **given | options)


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({}, {}, Verdict.READY),
        ({}, {"cutoff": NOW - 50 * HOUR}, Verdict.RETAINED),
        ({"unfinished": 1}, {}, Verdict.UNFINISHED),
        ({"dead": 1}, {}, Verdict.DEAD),
        ({}, {"shadow": True}, Verdict.SHADOW),
        ({}, {"runs": {}}, Verdict.NO_RUN),
        ({}, {"runs": {Target.MILVUS: NOW}}, Verdict.NO_RUN),
        ({}, {"runs": RUNS | {Target.NEO4J: NOW - 49 * HOUR}}, Verdict.NO_RUN),
        ({}, {"named": {7}}, Verdict.NAMED),
        ({}, {"named": {8}}, Verdict.READY),
        # Nothing to reconcile: the cache is no store.
        ({}, {"runs": {}, "targets": {Target.LTM_CACHE}}, Verdict.READY),
        # A late repair was worked off after the run began.
        ({"last_processed": NOW - 5.5 * HOUR}, {}, Verdict.NO_RUN),
        # Its events are still known, so it need not have been noted.
        ({"settled_at": None, "reached": TARGETS, "last_processed": NOW - 40 * HOUR}, {}, Verdict.READY),
        # Events of one target have been pruned, and nobody noted when they were finished: they may have been just now.
        (
            {"settled_at": None, "reached": TARGETS - {Target.MILVUS}, "last_processed": NOW - 40 * HOUR},
            {},
            Verdict.NO_RUN,
        ),
        ({"settled_at": None}, {}, Verdict.NO_RUN),
        # It was noted of an earlier delete, which was taken back.
        ({"settled_at": NOW - 51 * HOUR}, {}, Verdict.NO_RUN),
    ],
)
def test_conditions(changes: dict[str, Any], options: dict[str, Any], expected: Verdict) -> None:
    assert verdict(replace(GONE, **changes), **options) is expected


hours = st.integers(-100, 0).map(lambda number: NOW + number * HOUR)
tombstones = st.builds(
    Tombstone,
    memory_id=st.just(7),
    version=st.just(3),
    deleted_at=hours,
    settled_at=st.none() | hours,
    unfinished=st.integers(0, 1),
    dead=st.integers(0, 1),
    reached=st.frozensets(st.sampled_from(list(Target))),
    last_processed=st.none() | hours,
)


@given(
    tombstones,
    st.dictionaries(st.sampled_from([Target.MILVUS, Target.NEO4J]), hours),
    st.frozensets(st.sampled_from(list(Target))),
    st.booleans(),
    st.booleans(),
)
def test_what_is_ready_satisfies_every_condition(
    one: Tombstone, runs: dict[Target, datetime], targets: frozenset[Target], named: bool, shadow: bool
) -> None:
    names = {7} if named else set()
    if verdict(one, runs=runs, targets=targets, named=names, shadow=shadow) is not Verdict.READY:
        return
    assert not any((named, shadow, one.unfinished, one.dead))
    assert one.deleted_at < NOW - 24 * HOUR
    moment = settled(one, targets, NOW)
    assert moment is not None
    for target in targets - {Target.LTM_CACHE}:
        assert runs[target] > moment
        assert one.last_processed is None or runs[target] > one.last_processed


def test_settings_refuse_a_retention_that_is_too_short() -> None:
    outbox = OutboxSettings()
    span = outbox.retry_span_seconds
    assert span > outbox.max_attempts * outbox.lease_seconds
    purge = PurgeSettings(full_interval_seconds=1000, retention_seconds=1000 + span)
    with pytest.raises(ValueError, match="retention_seconds must exceed"):
        Settings(outbox=outbox, purge=purge)
    Settings(outbox=outbox, purge=purge.model_copy(update={"retention_seconds": 1001 + span}))
    Settings()
