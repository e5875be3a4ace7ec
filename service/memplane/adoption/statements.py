"""The migrations, taken apart: what they say about `long_term_memory` is done to an existing table in another way.

A new column becomes part of one ALTER TABLE, an index is built CONCURRENTLY, everything else runs as it stands. A
statement about the table that is none of these would be done wrongly, so it is refused (and a test reads every
migration of the release with this module).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from memplane.errors import SchemaError
from memplane.schema.migrate import Migration

_TABLE: Final = r"\{schema\}\.long_term_memory\b"
_TOKEN: Final = re.compile(r"--[^\n]*|\$(\w*)\$.*?\$\1\$|'(?:[^']|'')*'|;", re.DOTALL)
_CREATE: Final = re.compile(rf"CREATE TABLE {_TABLE}\s*\((?P<body>.*)\)\s*$", re.DOTALL)
_ALTER: Final = re.compile(rf"ALTER TABLE {_TABLE}\s+(?P<body>.*)$", re.DOTALL)
_INDEX: Final = re.compile(rf"CREATE (?P<unique>UNIQUE )?INDEX (?P<name>\w+)\s+ON {_TABLE}\s*(?P<rest>.*)$", re.DOTALL)
_DROP_INDEX: Final = re.compile(r"DROP INDEX (?:IF EXISTS )?\{schema\}\.(?P<name>long_term_memory_\w+)\s*$")
_COMMENT: Final = re.compile(rf"COMMENT ON COLUMN {_TABLE}")
_FUNCTION: Final = re.compile(r"CREATE (OR REPLACE )?FUNCTION ")
_MENTIONED: Final = re.compile(_TABLE)
_MADE: Final = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?\{schema\}\.(\w+)")
_COLUMN: Final = re.compile(
    r"(?P<name>\w+)\s+(?P<type>[\w \[\]()]+?)(?=\s+(?:NOT NULL|DEFAULT|GENERATED|PRIMARY KEY|CHECK|REFERENCES)|$)"
    r"(?P<options>.*)$",
    re.DOTALL,
)
_DEFAULT: Final = re.compile(r"DEFAULT\s+(?P<value>.+?)(?=\s+NOT NULL|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column that the truth needs. `type` in upper case, as the migration writes it."""

    name: str
    type: str
    not_null: bool
    default: str | None


@dataclass(frozen=True, slots=True)
class Index:
    """An index of `long_term_memory`. `rest` is what follows the table's name."""

    name: str
    unique: bool
    rest: str

    @property
    def sql(self) -> str:
        """The statement that builds it beside writers; `{schema}` stands for the quoted schema."""
        kind = "UNIQUE INDEX" if self.unique else "INDEX"
        return f"CREATE {kind} CONCURRENTLY {self.name} ON {{schema}}.long_term_memory {self.rest}"


@dataclass(frozen=True, slots=True)
class Release:
    """What this release's migrations want. `others` run as they stand, in order; `comments` after the columns exist."""

    columns: tuple[ColumnDefinition, ...]
    indexes: tuple[Index, ...]
    others: tuple[str, ...]
    comments: tuple[str, ...]

    @property
    def tables(self) -> frozenset[str]:
        """Names of the tables that `others` make."""
        return frozenset(found[1] for statement in self.others if (found := _MADE.match(statement)))


def split(text: str) -> Iterator[str]:
    """The statements of a migration, without comments and semicolons."""
    start, parts = 0, []
    for token in _TOKEN.finditer(text):
        if token[0].startswith("--"):
            parts.append(text[start : token.start()])
            start = token.end()
        elif token[0] == ";":
            parts.append(text[start : token.start()])
            start = token.end()
            if statement := "".join(parts).strip():
                yield statement
            parts = []
    if statement := ("".join(parts) + text[start:]).strip():
        yield statement


def read_release(migrations: Iterable[Migration]) -> Release:
    """Take the migrations apart. Raises `SchemaError` for a statement about the table of an unknown form."""
    columns: dict[str, ColumnDefinition] = {}
    indexes: dict[str, Index] = {}
    others: list[str] = []
    comments: list[str] = []
    for migration in migrations:
        for statement in split(migration.text):
            if found := _CREATE.match(statement) or _ALTER.match(statement):
                for definition in _definitions(found["body"], migration.name):
                    columns[definition.name] = definition
            elif found := _INDEX.match(statement):
                indexes[found["name"]] = Index(found["name"], bool(found["unique"]), found["rest"])
            elif found := _DROP_INDEX.match(statement):
                indexes.pop(found["name"], None)
            elif _COMMENT.match(statement):
                comments.append(statement)
            elif _MENTIONED.search(statement) and not _FUNCTION.match(statement):
                raise _unknown(migration.name)
            else:
                others.append(statement)
    del columns["id"]
    return Release(tuple(columns.values()), tuple(indexes.values()), tuple(others), tuple(comments))


def _definitions(body: str, migration: str) -> Iterator[ColumnDefinition]:
    for part in _parts(body):
        found = _COLUMN.match(part.removeprefix("ADD COLUMN ").strip())
        if found is None or found["name"].isupper():
            raise _unknown(migration)
        default = _DEFAULT.search(found["options"])
        yield ColumnDefinition(
            found["name"],
            found["type"].upper(),
            "NOT NULL" in found["options"],
            default["value"].strip() if default else None,
        )


def _parts(body: str) -> Iterator[str]:
    """Split at the commas that no parenthesis encloses."""
    depth, start = 0, 0
    for position, character in enumerate(body):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            yield body[start:position].strip()
            start = position + 1
    yield body[start:].strip()


def _unknown(migration: str) -> SchemaError:
    return SchemaError(f"Migration {migration} changes long_term_memory in a way that an adoption cannot repeat")
