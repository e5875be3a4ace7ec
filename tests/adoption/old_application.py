"""An application from before memplane, in a process of its own: plain SQL on a table that it made.

It inserts, updates and deletes over and over, checks after each statement that it took effect as it always has, and
keeps account of what its table must hold in the end. `python -m tests.adoption.old_application DSN SHAPE ACCOUNT
SECONDS SEED SCHEMA` runs until SIGTERM; the account is written when it ends, with the longest time a statement took.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import asyncpg

SHAPES = {
    # As in the seed: memplane's own names, none of its new columns.
    "seed": {
        "table": """
            CREATE TABLE {schema}.long_term_memory (
                id BIGSERIAL PRIMARY KEY,
                user_id VARCHAR(64) NOT NULL,
                content TEXT NOT NULL,
                metadata JSONB,
                importance DOUBLE PRECISION NOT NULL DEFAULT 0.5,
                category TEXT,
                tags TEXT[],
                created_at TIMESTAMPTZ NOT NULL DEFAULT now()
            )""",
        "map": {},
        "user": "user_id", "content": "content", "metadata": "metadata", "importance": "importance",
    },
    # Other names and types, a soft delete by a flag, a column that memplane knows nothing of, and a trigger.
    "renamed": {
        "table": """
            CREATE TABLE {schema}.long_term_memory (
                id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                org TEXT NOT NULL DEFAULT 'acme',
                owner BIGINT NOT NULL,
                body VARCHAR(4000) NOT NULL,
                attributes JSON,
                weight REAL NOT NULL DEFAULT 5,
                kind VARCHAR(40),
                labels TEXT,
                slug VARCHAR(80) UNIQUE,
                inserted TIMESTAMP NOT NULL DEFAULT now(),
                changed TIMESTAMP NOT NULL DEFAULT now(),
                is_deleted BOOLEAN NOT NULL DEFAULT FALSE,
                origin INT NOT NULL
            );
            CREATE FUNCTION {schema}.touch() RETURNS TRIGGER LANGUAGE plpgsql AS $$
            BEGIN NEW.changed := now(); RETURN NEW; END $$;
            CREATE TRIGGER touch BEFORE UPDATE ON {schema}.long_term_memory
                FOR EACH ROW EXECUTE FUNCTION {schema}.touch()""",
        "map": {
            "tenant": "org", "user_id": "owner", "content": "body", "metadata": "attributes", "importance": "weight",
            "category": "kind", "tags": "labels", "key": "slug", "created_at": "inserted", "updated_at": "changed",
            "deleted": "is_deleted",
        },
        "user": "owner", "content": "body", "metadata": "attributes", "importance": "weight",
    },
}  # fmt: skip
TEXTS = ("likes coffee", "用户喜欢咖啡", "moved to Lisbon", "has a dog named Rex", "works at night", "prefers tea")


async def make_table(connection: asyncpg.Connection, shape: str, rows: int, schema: str = "memplane") -> None:
    """The table with `rows` rows from the time before; every tenth id is missing."""
    await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    await connection.execute(SHAPES[shape]["table"].replace("{schema}", schema))
    if shape == "seed":
        columns = "user_id, content, metadata, importance, category, tags"
        values = """'user-' || n % 50, 'memory ' || n || ' likes coffee 用户喜欢咖啡',
            CASE n % 3 WHEN 0 THEN NULL ELSE jsonb_build_object('n', n, 'x', n / 7.0, 'u', 'é') END,
            (n % 11) / 10.0, CASE n % 4 WHEN 0 THEN 'preference' END, CASE n % 5 WHEN 0 THEN ARRAY['a', 'b "c"'] END"""
    else:
        columns = "org, owner, body, attributes, weight, kind, labels, slug, is_deleted, origin"
        values = """CASE n % 2 WHEN 0 THEN 'acme' ELSE 'globex' END, n % 50, 'memory ' || n || ' moved to Lisbon',
            CASE n % 3 WHEN 0 THEN NULL WHEN 1 THEN '[1]' ELSE '{"b": 1.50, "a": 2}' END::json, n % 12, 'k' || n % 4,
            CASE n % 5 WHEN 0 THEN 'x, y,,' END, CASE n % 2 WHEN 0 THEN 'slug-' || n END, n % 20 = 0, n"""
    await connection.execute(
        f"INSERT INTO {schema}.long_term_memory ({columns}) SELECT {values} FROM generate_series(1, {rows}) AS n"
    )
    await connection.execute(f"DELETE FROM {schema}.long_term_memory WHERE id % 10 = 0")
    await connection.execute(f"ANALYZE {schema}.long_term_memory")


@dataclass
class Account:
    """What the application knows of its own rows: content by id, gone ids, and how long it waited."""

    contents: dict[int, str] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    statements: int = 0
    longest: float = 0.0
    errors: list[str] = field(default_factory=list)

    def dump(self, path: Path) -> None:
        path.write_text(json.dumps({**self.__dict__, "gone": sorted(self.gone)}))

    @classmethod
    def load(cls, path: Path) -> Account:
        facts: dict[str, Any] = json.loads(path.read_text())
        facts["contents"] = {int(key): text for key, text in facts["contents"].items()}
        return cls(**{**facts, "gone": set(facts["gone"])})


class OldApplication:
    def __init__(self, connection: asyncpg.Connection, shape: str, seed: int, schema: str = "memplane") -> None:
        self.connection = connection
        self.shape = SHAPES[shape]
        self.renamed = shape == "renamed"
        self.table = f"{schema}.long_term_memory"
        self.random = random.Random(seed)
        self.account = Account()
        self.number = 0

    async def step(self) -> None:
        """One statement, timed, its effect checked."""
        mine = list(self.account.contents)
        kind = self.random.choice(("insert", "insert", "update", "update", "delete")) if mine else "insert"
        began = time.perf_counter()
        try:
            await getattr(self, kind)(self.random.choice(mine) if mine else 0)
        except (asyncpg.PostgresError, AssertionError) as error:
            self.account.errors.append(f"{kind}: {type(error).__name__}: {error}")
        self.account.longest = max(self.account.longest, time.perf_counter() - began)
        self.account.statements += 1

    async def insert(self, _: int) -> None:
        text, self.number = f"{self.random.choice(TEXTS)} {self.number}", self.number + 1
        extra = ", origin" if self.renamed else ""
        user = self.random.randrange(50)
        memory_id = await self.connection.fetchval(
            f"INSERT INTO {self.table} ({self.shape['user']}, {self.shape['content']}, {self.shape['metadata']}{extra})"
            f" VALUES ($1, $2, $3{', 7' if self.renamed else ''}) RETURNING id",
            user if self.renamed else f"user-{user}", text, json.dumps({"n": self.number, "half": 0.5}),
        )  # fmt: skip
        found = await self.read(memory_id)
        assert found == text, f"wrote {text!r}, read {found!r}"
        self.account.contents[memory_id] = text

    async def update(self, memory_id: int) -> None:
        text, self.number = f"{self.random.choice(TEXTS)} now {self.number}", self.number + 1
        content, importance = self.shape["content"], self.shape["importance"]
        done = await self.connection.execute(
            f"UPDATE {self.table} SET {content} = $1, {importance} = $2 WHERE id = $3",
            text, self.random.randrange(10) / 10, memory_id,
        )  # fmt: skip
        assert done == "UPDATE 1", done
        found = await self.read(memory_id)
        assert found == text, f"updated to {text!r}, read {found!r}"
        self.account.contents[memory_id] = text

    async def delete(self, memory_id: int) -> None:
        if self.renamed and self.random.random() < 0.5:
            done = await self.connection.execute(f"UPDATE {self.table} SET is_deleted = TRUE WHERE id = $1", memory_id)
            assert done == "UPDATE 1", done
        else:
            done = await self.connection.execute(f"DELETE FROM {self.table} WHERE id = $1", memory_id)
            assert done == "DELETE 1", done
            found = await self.read(memory_id)
            assert found is None, f"deleted, read {found!r}"
        del self.account.contents[memory_id]
        self.account.gone.add(memory_id)

    async def read(self, memory_id: int) -> str | None:
        found: str | None = await self.connection.fetchval(
            f"SELECT {self.shape['content']} FROM {self.table} WHERE id = $1", memory_id
        )
        return found


async def main(dsn: str, shape: str, path: Path, *, pause: float, seed: int, schema: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    connection = await asyncpg.connect(dsn)
    application = OldApplication(connection, shape, seed, schema)
    print("writing", flush=True)
    while not stop.is_set():
        await application.step()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)
    await connection.close()
    application.account.dump(path)


@contextmanager
def running(
    dsn: str, shape: str, path: Path, *, pause: float = 0.005, seed: int = 1, schema: str = "memplane"
) -> Iterator[None]:
    """The application at work; ended at the latest with the block. Its account is at `path` then."""
    command = [
        sys.executable,
        "-m",
        "tests.adoption.old_application",
        dsn,
        shape,
        str(path),
        str(pause),
        str(seed),
        schema,
    ]
    process = Popen(command, stdout=PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


if __name__ == "__main__":
    given_dsn, given_shape, given_path, given_pause, given_seed, given_schema = sys.argv[1:]
    asyncio.run(
        main(
            given_dsn,
            given_shape,
            Path(given_path),
            pause=float(given_pause),
            seed=int(given_seed),
            schema=given_schema,
        )
    )
