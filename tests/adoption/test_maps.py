"""Which tables and maps are refused, each reason naming the field or column and what to do. No server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memplane.adoption.mapping import resolve
from memplane.adoption.plan import build
from memplane.adoption.statements import read_release, split
from memplane.adoption.table import Column, OldTable
from memplane.errors import SchemaError, SettingsError
from memplane.schema.migrate import Migration, migrations
from memplane.settings import AdoptionSettings

RELEASE = read_release(migrations())


def column(name: str, kind: str = "text", **more: Any) -> Column:
    full = more.pop("full", kind)
    return Column(name, kind, full, **more)


def table(*columns: Column, **facts: Any) -> OldTable:
    base = (column("id", "bigint", not_null=True, has_default=True), column("user_id"), column("content"))
    by_name = {one.name: one for one in (*base, *columns)}
    made = OldTable(
        schema="memplane", kind="r", inherits=False, owned=True, hidden=False, rows=10, bytes=8192, heap_bytes=8192,
        encoding="UTF8", server=150000, columns=by_name, primary_key=("id",), unique=[], triggers=[],
        names=frozenset({"long_term_memory"}), sequence="memplane.long_term_memory_id_seq",
    )  # fmt: skip
    return replace(made, **facts)


def settings(**columns: str) -> AdoptionSettings:
    return AdoptionSettings.model_validate({"columns": columns})


def without(name: str) -> OldTable:
    made = table()
    return replace(made, columns={key: value for key, value in made.columns.items() if key != name})


def refused(old: OldTable, chosen: AdoptionSettings | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        resolve(old, chosen or settings(), RELEASE)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "chosen", "said"),
    [
        (table(), settings(content="body"), "columns.content: the table has no column 'body'; its columns"),
        (without("content"), settings(), "adoption.columns.content: required"),
        (without("user_id"), settings(), "adoption.columns.user_id: required"),
        (table(column("n", "integer")), settings(tags="n"), "adoption.columns.tags: n is integer; it must be one of"),
        (table(column("body", "bytea")), settings(content="body"), "adoption.columns.content: body is bytea"),
        (table(column("at", "bigint")), settings(created_at="at"), "adoption.columns.created_at: at is bigint"),
        (table(column("flag")), settings(deleted="flag"), "adoption.columns.deleted: flag is text"),
        (table(column("x")), settings(category="x", slot_hint="x"), "adoption.columns.slot_hint: 'x' is mapped as"),
        (
            table(column("gone", "timestamp with time zone"), column("flag", "boolean")),
            settings(deleted="flag", deleted_at="gone"),
            "adoption.columns.deleted: deleted_at is known already",
        ),
        (table(column("slug")), settings(key="slug"), "adoption.columns.key: slug must be unique"),
        (table(column("key")), settings(), "adoption.columns.key: key must be unique"),
        (table(column("importance", "real")), settings(), "importance is real, but memplane's own column"),
        (table(column("created_at", "date")), settings(), "created_at is date, but"),
        (table(column("user_id", "bigint")), settings(), "adoption.columns.user_id: user_id is bigint, but"),
        (table(column("metadata", "json")), settings(), "adoption.columns.metadata: metadata is json, but"),
        (table(column("body", generated=True)), settings(content="body"), "body is a generated column"),
        (table(column("version", "integer")), settings(), "version: memplane needs a column of that name"),
        (table(column("content_hash")), settings(), "content_hash: memplane needs a column of that name"),
        (table(column("category"), column("kind")), settings(category="kind"), "category: memplane needs a column"),
        (table(names=frozenset({"memory_outbox"})), settings(), "a table memory_outbox already"),
        (table(column("id", "integer")), settings(), "id is INT; memory ids are BIGINT"),
        (table(column("id", "uuid")), settings(), "id is uuid; memory ids are BIGINT. Rename it"),
        (without("id"), settings(), "id: memories need a BIGINT primary key"),
        (table(primary_key=("user_id", "id")), settings(), "the primary key must be (id)"),
        (table(sequence=None), settings(), "id has no sequence"),
        (table(sequence="memplane.numbers"), settings(), "ALTER SEQUENCE memplane.numbers RENAME TO"),
        (table(kind="p"), settings(), "is no plain table"),
        (table(kind="v"), settings(), "is no plain table"),
        (table(inherits=True), settings(), "is no plain table"),
        (table(owned=False), settings(), "the role must own memplane.long_term_memory"),
        (table(hidden=True), settings(), "FORCE ROW LEVEL SECURITY"),
        (table(server=120000), settings(), "PostgreSQL 13 or newer"),
        (table(encoding="LATIN1"), settings(), "the database's encoding must be UTF8"),
    ],
)  # fmt: skip
def test_a_table_or_map_that_cannot_work_is_refused_with_its_cure(
    old: OldTable, chosen: AdoptionSettings, said: str
) -> None:
    assert said in refused(old, chosen)


def test_all_reasons_are_told_at_once() -> None:
    said = refused(table(column("id", "uuid"), column("version", "integer"), owned=False), settings(content="body"))
    assert said.count("\n- ") == 5


def test_a_table_as_in_the_seed_needs_no_map() -> None:
    old = table(column("metadata", "jsonb"), column("importance", "double precision"))
    mapping = resolve(old, settings(), RELEASE)
    assert {source.field.name for source in mapping.sources} == {"user_id", "content", "metadata", "importance"}
    assert not mapping.copies
    plan = build(mapping, RELEASE, AdoptionSettings(tenant="it's"))
    assert "ADD COLUMN tenant TEXT NOT NULL DEFAULT 'it''s'" in plan.alter
    assert "ADD COLUMN content " not in plan.alter
    # Nothing that reads or rewrites the rows.
    assert " USING " not in plan.alter
    assert "TYPE" not in plan.alter.replace("TYPE TEXT", "")


def test_what_the_old_application_allows_too_little_of_is_widened() -> None:
    old = table(column("user_id", "character varying", full="character varying(64)", not_null=True),
                column("origin", "integer", not_null=True), column("category", not_null=True),
                column("id", "bigint", identity="a", not_null=True))  # fmt: skip
    alter = build(resolve(old, settings(), RELEASE), RELEASE, settings()).alter
    for change in ('"user_id" TYPE TEXT', '"origin" DROP NOT NULL', '"category" DROP NOT NULL',
                   "id SET GENERATED BY DEFAULT"):  # fmt: skip
        assert f"ALTER COLUMN {change}" in alter
    assert '"user_id" DROP NOT NULL' not in alter


def test_a_nullable_column_is_made_not_null_without_stopping_writers() -> None:
    plan = build(resolve(table(), settings(), RELEASE), RELEASE, settings())
    steps = [statement for statement in plan.enforce if '"content"' in statement or "_content" in statement]
    assert [step.split(" ", 3)[3].split(" ")[0] for step in steps] == ["DROP", "ADD", "VALIDATE", "ALTER", "DROP"]
    assert "NOT VALID" in steps[1]


def test_every_index_is_built_beside_writers() -> None:
    plan = build(resolve(table(), settings(), RELEASE), RELEASE, settings())
    assert all("INDEX CONCURRENTLY" in index.sql for index in plan.indexes)
    assert not any("long_term_memory (" in statement and "INDEX" in statement for statement in plan.prepare)


def test_every_migration_of_this_release_can_be_taken_apart() -> None:
    names = {definition.name for definition in RELEASE.columns}
    assert {"tenant", "content", "version", "content_hash", "search_tokens", "changed_xid"} <= names
    assert {index.name for index in RELEASE.indexes} >= {"long_term_memory_key", "long_term_memory_tokens"}
    assert {"memory_outbox", "memory_edge", "adoption", "adoption_deleted"} <= RELEASE.tables
    whole = "".join(migration.text for migration in migrations())
    assert whole.count("CREATE TABLE") == len(RELEASE.tables) + 1


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE {schema}.long_term_memory DROP COLUMN key",
        "ALTER TABLE {schema}.long_term_memory ADD CONSTRAINT c CHECK (version > 0)",
        "UPDATE {schema}.long_term_memory SET version = 1",
        "CREATE TRIGGER t BEFORE UPDATE ON {schema}.long_term_memory FOR EACH ROW EXECUTE FUNCTION f()",
    ],
)
def test_a_migration_that_an_adoption_cannot_repeat_is_noticed(statement: str) -> None:
    with pytest.raises(SchemaError, match="0099_new"):
        read_release([*migrations(), Migration(99, "0099_new", statement + ";")])


def test_statements_are_split_outside_of_strings_comments_and_bodies() -> None:
    text = "-- a; b\nSELECT 'x;''y'; CREATE FUNCTION f() AS $b$ BEGIN; END $b$;\nSELECT 2 -- last; one"
    assert list(split(text)) == ["SELECT 'x;''y'", "CREATE FUNCTION f() AS $b$ BEGIN; END $b$", "SELECT 2"]


def test_settings_name_an_unknown_field_of_the_map() -> None:
    with pytest.raises(ValueError, match="weight"):
        AdoptionSettings.model_validate({"columns": {"weight": "w"}})
