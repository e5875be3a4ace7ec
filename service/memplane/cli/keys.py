"""`memplane keys new|list`: API keys. The file holds hashes; a key itself is shown once, when it is made."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import typer

from memplane.api.auth.identity import Role
from memplane.api.auth.key_file import KeyFile, new_key, parse_key_file, render_key_file
from memplane.cli.context import Context, run_command
from memplane.errors import SettingsError

app = typer.Typer(help="Make and list API keys.")

FileOption = Annotated[
    Path | None, typer.Option("--file", help="The file of hashed keys; default: auth.api_keys_file.")
]


@app.command()
def new(
    context: typer.Context,
    *,
    tenant: Annotated[str, typer.Option(help="The one tenant that the key belongs to.")] = "default",
    user: Annotated[
        list[str] | None, typer.Option(help="A user whose memories it may touch; repeat it, or give '*' for any.")
    ] = None,
    role: Annotated[list[Role] | None, typer.Option(help="A role; repeat it. Default: reader and writer.")] = None,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires; without: never.")] = None,
    file: FileOption = None,
) -> None:
    """Make a key, add its hash to the file, print the key. Running services take it up within a second."""

    async def command(ours: Context) -> None:
        path = _file(ours, file)
        users: list[str] | Literal["*"] = "*" if user == ["*"] else user or []
        if not users:
            raise SettingsError("give --user NAME (repeat it for several), or --user '*' for any user")
        expires = datetime.now(UTC) + timedelta(days=days) if days is not None else None
        roles = role or [Role.READER, Role.WRITER]
        key, entry = new_key(tenant=tenant, users=users, roles=roles, name=name, expires_at=expires)
        held = parse_key_file(path.read_text(encoding="utf-8")) if path.exists() else KeyFile()
        _write(path, render_key_file(KeyFile(keys=[*held.keys, entry])))
        output = ours.output()
        if ours.as_json:
            output.document({"key": key, "id": entry.id, "file": str(path)})
            return
        output.say(key)
        output.errors.print(f"Added to {path} as {entry.id}. The key is not stored anywhere: keep it.", markup=False)

    run_command(context, command)


@app.command("list")
def list_(context: typer.Context, file: FileOption = None) -> None:
    """List the keys of the file, without the keys."""

    async def command(ours: Context) -> None:
        path = _file(ours, file)
        if not path.exists():
            raise SettingsError(f"{path} does not exist")
        entries = parse_key_file(path.read_text(encoding="utf-8")).keys
        output = ours.output()
        if ours.as_json:
            output.document([entry.model_dump(mode="json", exclude={"sha256"}) for entry in entries])
            return
        output.table(
            ["id", "name", "tenant", "users", "roles", "expires"],
            (
                [
                    entry.id,
                    entry.name,
                    entry.tenant,
                    entry.users if entry.users == "*" else ", ".join(entry.users),
                    ", ".join(entry.roles),
                    entry.expires_at.isoformat() if entry.expires_at else "never",
                ]
                for entry in entries
            ),
            empty="The file holds no keys.",
        )

    run_command(context, command)


def _file(ours: Context, given: Path | None) -> Path:
    path = given or ours.settings().auth.api_keys_file
    if path is None:
        raise SettingsError("give --file, or set auth.api_keys_file")
    return path


def _write(path: Path, text: str) -> None:
    """Replace the file in one step, readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(text)
    os.replace(fresh, path)
