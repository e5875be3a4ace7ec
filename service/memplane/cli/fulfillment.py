"""`memplane fulfillment serve`: the reference service of the recovery flows, for experiments and as an example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from memplane.cli.context import Context, run_command
from memplane.cli.interrupts import interruptible
from memplane.errors import SettingsError
from memplane.recovery.fulfillment import Faults, start_fulfillment_service

app = typer.Typer(help="The reference fulfilment service: stock, reservations and shipments behind HTTP.")


@app.command()
def serve(
    context: typer.Context,
    *,
    database: Annotated[Path, typer.Option(help="Its SQLite file; what is in it is kept.")],
    stock: Annotated[list[str] | None, typer.Option(help="SKU=QUANTITY for a new article; repeat it.")] = None,
    fault: Annotated[
        list[str] | None, typer.Option(help="NAME or NAME=MILLISECONDS of a fault to switch on; repeat it.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. It serves everybody who reaches it: keep others away.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8090,
) -> None:
    """Serve it until SIGTERM or Ctrl-C. It knows no callers: beyond loopback a network policy has to."""

    async def command(ours: Context) -> None:
        inventory, faults = _inventory(stock or []), _faults(fault or [])
        with interruptible() as stopped:
            try:
                service = await start_fulfillment_service(database, inventory, faults, host=host, port=port)
            except OSError as error:
                raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}") from None
            if ours.as_json:
                typer.echo(json.dumps({"url": service.url}))
            else:
                ours.output().say(f"fulfilment service on {service.url}")
            try:
                await stopped.wait()
            finally:
                await service.close()

    run_command(context, command)


def _inventory(entries: list[str]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for entry in entries:
        sku, _, quantity = entry.partition("=")
        if not sku or not quantity.isdecimal():
            raise SettingsError("--stock is SKU=QUANTITY, for example SKU-731=20")
        found.append({"sku": sku, "quantity": int(quantity)})
    return found


def _faults(entries: list[str]) -> dict[str, object]:
    known = Faults.__dataclass_fields__
    found: dict[str, object] = {}
    for entry in entries:
        name, given, value = entry.partition("=")
        if name not in known or (name.endswith("_ms") != bool(given)) or (given and not value.isdecimal()):
            raise SettingsError(f"--fault is one of {', '.join(known)}; those in _ms take =MILLISECONDS")
        found[name] = int(value) if given else True
    return found
