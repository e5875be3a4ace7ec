"""The trigger that sees every change of the old application, as SQL. Pure.

Who wrote a row shows in it: memplane always sets `content_hash`, and raises `version` with each change; the old
application knows neither column. Its changes are copied into memplane's columns, get the next version, and an empty
`content_hash` that marks the row until a bounded job (`settle.py`) has hashed it and enqueued its events: the hash is
over canonical JSON, which SQL cannot make. A mark is part of the old application's own transaction, so none is lost.
memplane's changes are copied back, so that the old application reads them.

Deleted rows leave their id and version in `adoption_deleted`. Named to run after the application's own triggers.
"""

from __future__ import annotations

from typing import Final

from memplane.adoption.fields import CHANGED, Source
from memplane.adoption.mapping import Mapping

ROW_FUNCTION: Final = "adoption_row"
DELETE_FUNCTION: Final = "adoption_delete"
TRUNCATE_FUNCTION: Final = "adoption_truncate"
ROW_TRIGGER: Final = "zzz_memplane_adoption"
DELETE_TRIGGER: Final = "zzz_memplane_adoption_delete"
TRUNCATE_TRIGGER: Final = "zzz_memplane_adoption_truncate"

_HEADER: Final = "RETURNS TRIGGER LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$"

_ROW: Final = """
CREATE OR REPLACE FUNCTION {schema}.{name}() {header}
DECLARE
    gone RECORD;
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.content_hash <> '' THEN
            {told_all}
            RETURN NEW;
        END IF;
        {copy_all}
        NEW.text_hash := sha256(convert_to(NEW.content, 'UTF8'));
        SELECT d.version, d.edges_version INTO gone FROM {schema}.adoption_deleted AS d WHERE d.id = NEW.id;
        IF FOUND THEN
            NEW.version := gone.version + 1;
            NEW.edges_version := gone.edges_version;
            DELETE FROM {schema}.adoption_deleted AS d WHERE d.id = NEW.id;
        END IF;
        RETURN NEW;
    END IF;
    IF NEW.version = OLD.version AND OLD.content_hash = '' AND NEW.content_hash <> '' THEN
        -- Only hashed: a trigger of the application may have taken it for a change.
        {keep_time}
        RETURN NEW;
    END IF;
    IF NEW.version <> OLD.version OR NEW.content_hash <> OLD.content_hash THEN
        {told_changed}
        RETURN NEW;
    END IF;
    {copy_times}
    IF {changed} THEN
        {copy_fields}
        NEW.version := OLD.version + 1;
        NEW.content_hash := '';
        NEW.changed_xid := pg_current_xact_id();
        NEW.settled_at := NULL;
        IF NEW.deleted_at IS NULL THEN
            NEW.superseded_by := NULL;
        END IF;
        {touch}
        IF NEW.content IS DISTINCT FROM OLD.content THEN
            NEW.text_hash := sha256(convert_to(NEW.content, 'UTF8'));
            NEW.document := NULL;
        END IF;
        -- The lexemes begin with a hash of the scope.
        NEW.tokens_version := 0;
    END IF;
    RETURN NEW;
END
$body$
"""

_DELETE: Final = """
CREATE OR REPLACE FUNCTION {schema}.{name}() {header}
BEGIN
    -- A hashed tombstone has had its events; taking it away is the purge.
    IF OLD.deleted_at IS NULL OR OLD.content_hash = '' THEN
        INSERT INTO {schema}.adoption_deleted AS d (id, tenant, user_id, version, edges_version)
        VALUES (OLD.id, OLD.tenant, OLD.user_id, OLD.version + 1, OLD.edges_version)
        ON CONFLICT (id) DO UPDATE SET version = greatest(d.version, excluded.version), settled_at = NULL;
    END IF;
    RETURN NULL;
END
$body$
"""

_TRUNCATE: Final = """
CREATE OR REPLACE FUNCTION {schema}.{name}() {header}
BEGIN
    INSERT INTO {schema}.adoption_deleted AS d (id, tenant, user_id, version, edges_version)
    SELECT m.id, m.tenant, m.user_id, m.version + 1, m.edges_version FROM {schema}.long_term_memory AS m
    WHERE m.deleted_at IS NULL OR m.content_hash = ''
    ON CONFLICT (id) DO UPDATE SET version = greatest(d.version, excluded.version), settled_at = NULL;
    RETURN NULL;
END
$body$
"""

_TRIGGERS: Final = (
    f"CREATE TRIGGER {ROW_TRIGGER} BEFORE INSERT OR UPDATE ON {{schema}}.long_term_memory "
    f"FOR EACH ROW EXECUTE FUNCTION {{schema}}.{ROW_FUNCTION}()",
    f"CREATE TRIGGER {DELETE_TRIGGER} AFTER DELETE ON {{schema}}.long_term_memory "
    f"FOR EACH ROW EXECUTE FUNCTION {{schema}}.{DELETE_FUNCTION}()",
    f"CREATE TRIGGER {TRUNCATE_TRIGGER} BEFORE TRUNCATE ON {{schema}}.long_term_memory "
    f"FOR EACH STATEMENT EXECUTE FUNCTION {{schema}}.{TRUNCATE_FUNCTION}()",
)


def trigger_functions(mapping: Mapping) -> list[str]:
    """The statements that make the functions; `{schema}` stands for the quoted schema."""
    return [
        _fill(_ROW, ROW_FUNCTION, **_row_parts(mapping)),
        _fill(_DELETE, DELETE_FUNCTION),
        _fill(_TRUNCATE, TRUNCATE_FUNCTION),
    ]


def triggers() -> tuple[str, ...]:
    """The statements that make the triggers."""
    return _TRIGGERS


def drop_triggers() -> list[str]:
    """The statements that take triggers and functions away."""
    named = ((ROW_TRIGGER, ROW_FUNCTION), (DELETE_TRIGGER, DELETE_FUNCTION), (TRUNCATE_TRIGGER, TRUNCATE_FUNCTION))
    return [
        *(f"DROP TRIGGER IF EXISTS {trigger} ON {{schema}}.long_term_memory" for trigger, _ in named),
        *(f"DROP FUNCTION IF EXISTS {{schema}}.{function}()" for _, function in named),
    ]


def _fill(text: str, name: str, **parts: str) -> str:
    for part, value in {"name": name, "header": _HEADER, **parts}.items():
        text = text.replace("{" + part + "}", value)
    return text.strip()


def _row_parts(mapping: Mapping) -> dict[str, str]:
    fields = [source for source in mapping.sources if source.field.name not in CHANGED]
    times = [source for source in mapping.sources if source.field.name in CHANGED and source.moves]
    updated = mapping.source("updated_at")
    return {
        "told_all": _statements([f"NEW.{one.quoted} := {_on('NEW', one.back)};" for one in mapping.copies]),
        "told_changed": _statements([_told(one) for one in mapping.copies]),
        "copy_all": _statements([_copied(one) for one in mapping.sources if one.moves]),
        "copy_fields": _statements([_copied(one) for one in fields if one.moves]),
        "copy_times": _statements([_copied(one) for one in times]),
        "keep_time": "" if updated is None else f"NEW.{updated.quoted} := OLD.{updated.quoted};",
        # An application without such a column leaves it to memplane to say when a row changed.
        "touch": "NEW.updated_at := greatest(clock_timestamp(), OLD.updated_at);" if updated is None else "",
        "changed": " OR ".join(
            f"{_on('NEW', one.comparable)} IS DISTINCT FROM {_on('OLD', one.comparable)}" for one in fields
        ),
    }


def _copied(source: Source) -> str:
    return f'NEW."{source.field.column}" := {_on("NEW", source.forward)};'


def _told(source: Source) -> str:
    column = source.field.column
    return (
        f'IF NEW."{column}" IS DISTINCT FROM OLD."{column}" THEN '
        f"NEW.{source.quoted} := {_on('NEW', source.back)}; END IF;"
    )


def _on(row: str, expression: str) -> str:
    return expression.replace("{r}", row)


def _statements(lines: list[str]) -> str:
    return "\n        ".join(lines)
