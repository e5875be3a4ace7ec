"""`memplane drop`: the end of a backend."""

from __future__ import annotations

from typing import Annotated

import typer

from memplane.cli.context import Context, connected, run_command
from memplane.errors import SchemaError
from memplane.projections.dropping import drop_collections, drop_nodes
from memplane.schema.drop import drop_schema
from memplane.schema.identity import read_identity


def drop(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without it, only say what would go.")] = False,
) -> None:
    """Drop this backend for good: its Milvus collections, its Neo4j nodes, then the schema with every memory in it."""

    async def command(ours: Context) -> None:
        output = ours.output()
        async with connected(ours.settings()) as connections:
            database = connections.database
            try:
                backend = await read_identity(database)
            except SchemaError as error:
                output.say(f"Nothing to drop: {error}")
                return
            if not yes:
                output.say(f"This would drop backend {backend} with all its memories. Say --yes to do it.")
                raise typer.Exit(2)
            gone = await drop_collections(database, connections.milvus) if connections.milvus is not None else []
            nodes = await drop_nodes(database, connections.neo4j) if connections.neo4j is not None else 0
            emptied = await drop_schema(database)
        if ours.as_json:
            output.document({"backendId": backend, "collections": gone, "nodes": nodes, "schemaDropped": emptied})
            return
        rest = "the schema" if emptied else "its tables; the schema stays, because it holds other objects"
        output.say(f"Backend {backend} is gone: {len(gone)} collections, {nodes} nodes, and {rest}.")

    run_command(context, command)


def add_to(app: typer.Typer) -> None:
    app.command()(drop)
