"""Values that cannot be used in place, roles without rights on memplane's tables, the view of the guide, the end."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from memplane.adoption.finish import finish
from memplane.adoption.run import adopt, look
from memplane.adoption.settle import settle
from memplane.adoption.trigger import DELETE_FUNCTION, ROW_FUNCTION, TRUNCATE_FUNCTION
from memplane.errors import SchemaError, SettingsError
from memplane.outbox.events import Target
from memplane.schema.drop import ADOPTION_FUNCTIONS, drop_schema
from memplane.schema.migrate import migrate
from memplane.settings import AdoptionSettings
from tests.adoption.conftest import MakeWorld
from tests.adoption.support import check_rows

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "adoption.md").read_text(encoding="utf-8")
LTM = "memplane.long_term_memory"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("UPDATE {t} SET importance = 1.5 WHERE id < 4", "importance: 3 values of importance do not lie in 0..1"),
        ("UPDATE {t} SET importance = 'NaN' WHERE id = 1", "columns.importance: 1 values"),
        ("UPDATE {t} SET metadata = '[1]' WHERE id = 1", "columns.metadata: 1 values of metadata are no objects"),
        ("UPDATE {t} SET tags = ARRAY['a', NULL] WHERE id = 1", "columns.tags: 1 values of tags hold more than a list"),
        ("UPDATE {t} SET category = '' WHERE id = 1", "columns.category: 1 values of category are empty or longer"),
        ("UPDATE {t} SET user_id = '' WHERE id = 1", "columns.user_id: 1 values of user_id are empty or longer"),
        ("ALTER TABLE {t} ALTER user_id DROP NOT NULL; UPDATE {t} SET user_id = NULL WHERE id = 1", "have none"),
    ],
)  # fmt: skip
async def test_values_that_cannot_be_used_in_place_are_counted(old_world: MakeWorld, spoil: str, said: str) -> None:
    world = await old_world("seed", 20)
    await world.sql.execute(spoil.replace("{t}", LTM))
    with pytest.raises(SettingsError, match=re.escape(said)):
        await adopt(world.database, world.adoption, targets=())
    assert await world.value("SELECT to_regclass('memplane.adoption')") is None, "nothing was changed"


async def test_a_key_must_be_kept_unique_by_the_old_table(old_world: MakeWorld) -> None:
    world = await old_world("none", columns={"tenant": "org", "key": "slug"})
    await world.sql.execute(
        f"CREATE SCHEMA memplane; CREATE TABLE {LTM} (id BIGSERIAL PRIMARY KEY, org CHAR(4) NOT NULL,"
        " user_id TEXT NOT NULL, content TEXT NOT NULL, slug TEXT, UNIQUE (org, user_id, slug));"
        f"INSERT INTO {LTM} (org, user_id, content, slug) VALUES ('acme', 'u', 'x', 'k'), ('acme', 'u', 'y', 'j')"
    )
    await world.sql.execute(f"ALTER TABLE {LTM} DROP CONSTRAINT long_term_memory_org_user_id_slug_key")
    with pytest.raises(SettingsError, match=r"columns\.key: slug must be unique"):
        await adopt(world.database, world.adoption, targets=())
    await world.sql.execute(f"CREATE UNIQUE INDEX ON {LTM} (org, user_id, slug)")
    state = await adopt(world.database, world.adoption, targets=())
    assert state is not None
    assert state.stage == "adopted"
    with pytest.raises(asyncpg.UniqueViolationError):
        await world.sql.execute(f"INSERT INTO {LTM} (org, user_id, content, slug) VALUES ('acme', 'u', 'z', 'k')")


async def test_nothing_to_adopt(old_world: MakeWorld) -> None:
    world = await old_world("none")
    with pytest.raises(SchemaError, match=r"no table memplane\.long_term_memory"):
        await look(world.database, world.adoption, ())
    await migrate(world.database)
    with pytest.raises(SchemaError, match="memplane's own already"):
        await look(world.database, world.adoption, ())


async def test_null_texts_of_the_old_application_stay_possible(old_world: MakeWorld) -> None:
    world = await old_world("seed", 20)
    await world.sql.execute(
        f"ALTER TABLE {LTM} ALTER content DROP NOT NULL; ALTER TABLE {LTM} ALTER created_at DROP NOT NULL"
    )
    await world.sql.execute(f"UPDATE {LTM} SET content = NULL, created_at = NULL WHERE id = 1")
    await adopt(world.database, world.adoption, targets=())
    await world.sql.execute(f"INSERT INTO {LTM} (user_id, content) VALUES ('u', NULL)")
    await finish(world.database, world.adoption, targets=())
    assert await world.value(f"SELECT count(*) FROM {LTM} WHERE content = '' AND created_at IS NOT NULL") == 2
    await check_rows(world.database)


async def test_a_role_that_only_knows_its_table(old_world: MakeWorld) -> None:
    """The trigger's own rights are those of memplane's role; the old application needs none on memplane's tables."""
    world = await old_world("seed", 20)
    role = f"old_{uuid4().hex[:12]}"
    await world.sql.execute(
        f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA memplane TO {role};"
        f" GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON {LTM} TO {role};"
        f" GRANT USAGE ON SEQUENCE {LTM}_id_seq TO {role}"
    )
    try:
        await adopt(world.database, world.adoption, targets=())
        await world.sql.execute(f"SET ROLE {role}")
        await world.sql.execute(f"INSERT INTO {LTM} (user_id, content) VALUES ('u', 'new')")
        await world.sql.execute(f"UPDATE {LTM} SET content = 'other' WHERE id = 1")
        await world.sql.execute(f"DELETE FROM {LTM} WHERE id = 2")
        await world.sql.execute(f"INSERT INTO {LTM} (id, user_id, content) VALUES (2, 'u', 'back')")
        await world.sql.execute(f"TRUNCATE {LTM}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await world.sql.execute("SELECT FROM memplane.adoption_deleted")
        await world.sql.execute("RESET ROLE")
        assert await settle(world.database, targets={Target.MILVUS}) == 19
    finally:
        await world.sql.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


async def test_the_view_of_the_guide(old_world: MakeWorld) -> None:
    """A column of memplane's name and another type: the guide's SQL, and an application that never notices."""
    world = await old_world("none", columns={"user_id": "old_user_id"}, quiet_seconds=0)
    await world.sql.execute(
        "CREATE TABLE public.long_term_memory (id BIGSERIAL PRIMARY KEY, user_id BIGINT NOT NULL,"
        " content TEXT NOT NULL, created_at TIMESTAMPTZ NOT NULL DEFAULT now())"
    )
    await world.sql.execute(
        "INSERT INTO public.long_term_memory (user_id, content) SELECT n, 'x' FROM generate_series(1, 9) n"
    )
    (script,) = re.findall(r"```sql\n(.*?)```", GUIDE, re.DOTALL)
    await world.sql.execute(script.replace("TO old_application", "TO CURRENT_USER"))
    state = await adopt(world.database, world.adoption, targets=())
    assert state is not None
    view = "public.long_term_memory"
    memory_id = await world.value(f"INSERT INTO {view} (user_id, content) VALUES (77, 'new') RETURNING id")
    assert memory_id == 10
    await world.sql.execute(
        f"INSERT INTO {view} (id, user_id, content) VALUES (1, 1, 'again')"
        " ON CONFLICT (id) DO UPDATE SET content = excluded.content"
    )
    assert await world.sql.execute(f"DELETE FROM {view} WHERE id = 2") == "DELETE 1"
    assert await world.value(f"SELECT user_id FROM {view} WHERE id = 10 FOR UPDATE") == 77
    while await settle(world.database, targets=()):
        pass
    assert await world.value(f"SELECT user_id FROM {LTM} WHERE id = 10") == "77"
    rows = await check_rows(world.database)
    assert {row["id"]: row["version"] for row in rows if row["version"] > 1} == {1: 2}


async def test_dropping_an_adopted_backend_leaves_nothing(old_world: MakeWorld) -> None:
    assert (ROW_FUNCTION, DELETE_FUNCTION, TRUNCATE_FUNCTION) == ADOPTION_FUNCTIONS
    world = await old_world("seed", 20)
    await adopt(world.database, world.adoption, targets=())
    assert await drop_schema(world.database)


async def test_a_release_of_another_level_does_not_go_on(old_world: MakeWorld) -> None:
    world = await old_world("seed", 20)
    await adopt(world.database, world.adoption, targets=())
    await world.sql.execute(
        "UPDATE memplane.adoption SET stage = 'backfill', document = jsonb_set(document, '{level}', '3')"
    )
    with pytest.raises(SchemaError, match="level 3"):
        await look(world.database, world.adoption, ())
    assert isinstance(world.adoption, AdoptionSettings)
