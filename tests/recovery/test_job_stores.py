"""One suite for both stores of task documents: what SQLite promises, PostgreSQL promises, and the other way round."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from memplane.contracts import Scope
from memplane.recovery import JobBusy, JobStore, RecoveryError
from memplane.recovery.documents import Job, new_job
from memplane.recovery.leases import held, owner_of
from memplane.recovery.postgres_jobs import PostgresJobs
from memplane.recovery.sqlite_jobs import SqliteJobs
from memplane.schema.database import Database
from memplane.settings import PostgresSettings

Open = Callable[[], JobStore]


@pytest.fixture(params=["sqlite", "postgres"])
async def another(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens one more store on the same documents, as another process would."""
    databases: list[Database] = []
    opened: list[JobStore] = []
    settings: PostgresSettings | None = None
    if request.param == "postgres":
        settings = request.getfixturevalue("postgres_settings")

    def open_one() -> JobStore:
        if settings is None:
            opened.append(SqliteJobs(tmp_path / "tasks.sqlite"))
        else:
            databases.append(Database(settings, application_name="memplane-tests"))
            opened.append(PostgresJobs(databases[-1]))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()
    for database in databases:
        await database.close()


@pytest.fixture
async def store(another: Open) -> JobStore:
    chosen = another()
    await chosen.open()
    return chosen


def job(name: str = "j1", **fields: Any) -> Job:
    return {**new_job(name, "hash", requires_approval=False), **fields}


def staged(stage: str) -> Callable[[Job], Job]:
    return lambda present: {**present, "stage": stage}


async def test_what_is_stored_comes_back_whole(store: JobStore, another: Open) -> None:
    document = job(
        order={"sku": "ä漢😀", "quantity": 2, "address": "\u0001 \u0000 \\"}, context={"n": 1.5, "z": 1, "a": []}
    )
    await store.insert(document)
    found = await another().load("j1")
    assert found == document
    assert list(found["context"]) == ["n", "z", "a"], "fingerprints depend on the order"


async def test_an_id_is_taken_once(store: JobStore) -> None:
    await store.insert(job())
    with pytest.raises(RecoveryError, match="exists"):
        await store.insert(job(sourceHash="other"))
    assert (await store.load("j1"))["sourceHash"] == "hash"
    assert [event.kind for event in await store.events("j1")] == ["created"]


async def test_an_unknown_task_is_an_error_everywhere(store: JobStore) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: store.load("no"),
        lambda: store.change("no", "k", dict),
        lambda: store.record("no", "k", {}),
        lambda: store.events("no"),
        lambda: store.acquire("no", "me", 5),
    ]
    for call in calls:
        with pytest.raises(RecoveryError, match="Unknown task"):
            await call()


async def test_a_document_of_another_schema_is_refused_and_left_alone(store: JobStore) -> None:
    await store.insert(job(schemaVersion=2))
    with pytest.raises(RecoveryError, match="Unsupported checkpoint schema"):
        await store.load("j1")
    with pytest.raises(RecoveryError, match="Unsupported checkpoint schema"):
        await store.change("j1", "k", staged("failed"))
    with pytest.raises(RecoveryError, match="Unsupported checkpoint schema"):
        await store.jobs()


async def test_a_change_is_one_revision_and_one_event_with_the_whole_document(store: JobStore) -> None:
    await store.insert(job())
    changed = await store.change("j1", "prepared", staged("prepared"))
    assert (changed["revision"], changed["stage"]) == (1, "prepared")
    assert await store.load("j1") == changed
    created, event = await store.events("j1")
    assert (created.data["revision"], event.kind, event.data) == (0, "prepared", changed)


async def test_a_refused_change_leaves_nothing(store: JobStore) -> None:
    await store.insert(job())

    def refuse(present: Job) -> Job:
        raise RecoveryError("not now")

    with pytest.raises(RecoveryError, match="not now"):
        await store.change("j1", "k", refuse)
    assert await store.load("j1") == job()
    assert len(await store.events("j1")) == 1


async def test_changes_of_two_processes_are_never_lost(store: JobStore, another: Open) -> None:
    await store.insert(job(context=0))
    stores = [store, another(), another()]

    def increment(present: Job) -> Job:
        return {**present, "context": present["context"] + 1}

    await asyncio.gather(*(stores[number % 3].change("j1", "k", increment) for number in range(30)))
    found = await store.load("j1")
    assert (found["context"], found["revision"]) == (30, 30)
    assert [event.data["revision"] for event in await store.events("j1")] == list(range(31))


async def test_notes_change_nothing(store: JobStore) -> None:
    await store.insert(job())
    await store.record("j1", "source-read", {"bytes": 3})
    assert await store.load("j1") == job()
    assert (await store.events("j1"))[-1].data == {"bytes": 3}


async def test_tasks_are_listed_by_stage_in_pages(store: JobStore) -> None:
    for name in ("b", "a", "C", "_"):
        await store.insert(job(name))
    await store.change("a", "k", staged("uncertain"))
    assert [found["id"] for found in await store.jobs()] == ["C", "_", "a", "b"]
    assert [found["id"] for found in await store.jobs(limit=2, after="C")] == ["_", "a"]
    assert [found["id"] for found in await store.jobs(stages=["uncertain", "failed"])] == ["a"]


async def test_a_lease_has_one_owner_who_may_renew_it(store: JobStore, another: Open) -> None:
    await store.insert(job())
    assert await store.acquire("j1", "one", 30)
    assert await store.acquire("j1", "one", 30)
    other = another()
    assert not await other.acquire("j1", "two", 30)
    await other.release("j1", "two")
    assert not await other.acquire("j1", "two", 30), "only its owner gives it back"
    await store.release("j1", "one")
    assert await other.acquire("j1", "two", 30)


async def test_a_lease_ends_by_itself(store: JobStore) -> None:
    await store.insert(job())
    assert await store.acquire("j1", "killed", 0.05)
    await asyncio.sleep(0.1)  # the lease runs on the store's clock
    assert await store.acquire("j1", "next", 30)


async def test_of_many_that_ask_at_once_one_gets_the_lease(store: JobStore, another: Open) -> None:
    await store.insert(job())
    other = another()
    got = await asyncio.gather(*((store, other)[n % 2].acquire("j1", f"worker-{n}", 30) for n in range(8)))
    assert sum(got) == 1


async def test_held_renews_and_gives_back(store: JobStore, another: Open) -> None:
    await store.insert(job())
    other = another()
    async with held(store, "j1", "one", 0.6) as lost:
        await asyncio.sleep(0.9)  # longer than the lease
        assert not lost.aborted
        with pytest.raises(JobBusy):
            async with held(other, "j1", "two", 1):
                pass
    async with held(other, "j1", "two", 5):
        pass


async def test_whoever_loses_the_lease_is_told(store: JobStore, another: Open) -> None:
    await store.insert(job())
    async with held(store, "j1", "one", 0.3) as lost:
        other = another()
        while not await other.acquire("j1", "two", 30):
            await store.release("j1", "one")  # until it comes between two renewals
        async with asyncio.timeout(10):
            await lost.wait()
        assert isinstance(lost.reason, JobBusy)
    assert not await store.acquire("j1", "one", 1), "the other's lease was left alone"


async def test_a_change_or_note_of_an_owner_needs_its_lease(store: JobStore, another: Open) -> None:
    await store.insert(job())
    other = another()
    assert await store.acquire("j1", "one", 0.05)
    assert (await store.change("j1", "k", staged("prepared"), owner="one"))["revision"] == 1
    await asyncio.sleep(0.1)  # the lease runs on the store's clock
    assert (await store.change("j1", "k", staged("prepared"), owner="one"))["revision"] == 2, "nobody has taken it"
    assert await other.acquire("j1", "two", 30)
    for late in (store.change("j1", "k", staged("failed"), owner="one"), store.record("j1", "note", {}, owner="one")):
        with pytest.raises(JobBusy, match="lost"):
            await late
    assert (await other.change("j1", "k", staged("reserved"), owner="two"))["revision"] == 3
    await other.release("j1", "two")
    with pytest.raises(JobBusy, match="lost"):
        await other.change("j1", "k", staged("failed"), owner="two")
    assert (await store.change("j1", "decided", staged("approved")))["revision"] == 4, "a person holds no lease"
    assert [event.kind for event in await store.events("j1")] == ["created", "k", "k", "k", "decided"]


async def test_nobody_takes_the_lease_within_a_fenced_change(store: JobStore, another: Open) -> None:
    """The lease ends while the change is under way; whoever takes it next sees the change."""
    await store.insert(job())
    other = another()
    assert await store.acquire("j1", "one", 0.05)
    took: list[float] = []

    def slow(present: Job) -> Job:
        time.sleep(0.3)  # in the store's transaction, past the lease's end
        return {**present, "stage": "prepared"}

    async def take() -> None:
        await asyncio.sleep(0.1)
        while not await other.acquire("j1", "two", 30):  # noqa: ASYNC110 - the lease ends on the store's clock
            await asyncio.sleep(0.01)
        took.append((await other.load("j1"))["revision"])

    await asyncio.gather(store.change("j1", "k", slow, owner="one"), take())
    assert took == [1]


async def test_within_held_the_task_is_written_under_its_lease(store: JobStore) -> None:
    assert owner_of("j1") is None
    await store.insert(job())
    async with held(store, "j1", "one", 30):
        assert owner_of("j1") == "one"
        assert owner_of("j2") is None
        assert await asyncio.create_task(asyncio.to_thread(owner_of, "j1")) == "one", "whatever it starts"
    assert owner_of("j1") is None


async def test_postgresql_shows_a_scope_its_own_tasks_alone(database: Database) -> None:
    ours = PostgresJobs.of(database, Scope("t1", "ann"))
    theirs = PostgresJobs.of(database, Scope("t2", "ann"))
    await ours.insert(job())
    for call in (theirs.load("j1"), theirs.events("j1"), theirs.change("j1", "k", dict), theirs.record("j1", "k", {})):
        with pytest.raises(RecoveryError, match="Unknown task"):
            await call
    assert await theirs.jobs() == []
    assert [found["id"] for found in await PostgresJobs(database).jobs()] == ["j1"]
    with pytest.raises(RecoveryError, match="exists"):
        await theirs.insert(job())


async def test_postgresql_keeps_what_text_cannot_hold(database: Database) -> None:
    store = PostgresJobs(database)
    await store.insert(job(context="\ud800\u0000"))
    assert (await store.load("j1"))["context"] == "\ud800\u0000"
