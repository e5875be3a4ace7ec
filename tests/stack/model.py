"""What a running stack is: three addresses and the process groups behind them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from memplane.settings import MilvusSettings, Neo4jSettings, PostgresSettings


class StackError(RuntimeError):
    """A server of the test stack cannot be started; the text says what to do."""


class Server(BaseModel):
    """One server. `group` is its process group, None when the user brought the server."""

    model_config = ConfigDict(extra="forbid")
    host: str = "127.0.0.1"
    port: int
    user: str
    password: str
    group: int | None = None
    data: Path | None = None


class Stack(BaseModel):
    """All addresses. `starter` is `command` or `pytest`: what pytest started, the last pytest ends."""

    model_config = ConfigDict(extra="forbid")
    starter: str = "command"
    postgres: Server
    milvus: Server
    neo4j: Server

    def dsn(self, database: str = "postgres") -> str:
        """URL of a database of this PostgreSQL server."""
        server = self.postgres
        return f"postgresql://{server.user}:{server.password}@{server.host}:{server.port}/{database}"

    def postgres_settings(self, database: str) -> PostgresSettings:
        return PostgresSettings.model_validate({"dsn": self.dsn(database)})

    def milvus_settings(self) -> MilvusSettings:
        server = self.milvus
        return MilvusSettings.model_validate(
            {"uri": f"http://{server.host}:{server.port}", "token": f"{server.user}:{server.password}"}
        )

    def neo4j_settings(self) -> Neo4jSettings:
        server = self.neo4j
        return Neo4jSettings.model_validate(
            {"uri": f"bolt://{server.host}:{server.port}", "user": server.user, "password": server.password}
        )

    def save(self, path: Path) -> None:
        """Write the file in one step, readable by its owner alone: it holds passwords."""
        partial = path.with_suffix(f".{os.getpid()}")
        partial.touch(mode=0o600)
        partial.write_text(self.model_dump_json(indent=2), encoding="utf-8")
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Stack | None:
        """The stack described by a file, None when there is none."""
        try:
            return cls.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
