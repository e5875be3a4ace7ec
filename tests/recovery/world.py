"""A task folder, a fulfilment service with faults, a scripted model, and a runtime over them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memplane.recovery import FulfillmentService, RecoveryStore, start_fulfillment_service
from memplane.runtime import Runtime, create_runtime
from memplane.workers import create_context_worker, create_infer_worker, create_interaction_worker

TEXT = "Fulfillment request. SKU: SKU-731; quantity: 2; delivery address: Dock-North."
ORDER = {"sku": "SKU-731", "quantity": 2, "address": "Dock-North"}
ID = "order-731"
MODEL = {"provider": "scripted", "model": "m"}
INPUT = {"id": ID, "model": MODEL}


@dataclass
class ScriptedModel:
    """Answers from a list, the last one for ever; `None` stands for the order of the fixture."""

    answers: list[Any] = field(default_factory=lambda: [None])
    calls: int = 0

    async def invoke(self, input: Mapping[str, Any], options: Any) -> dict[str, Any]:
        answer = self.answers[min(self.calls, len(self.answers) - 1)]
        self.calls += 1
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Mapping) and "message" in answer:
            return dict(answer)
        content = json.dumps(ORDER if answer is None else answer) if not isinstance(answer, str) else answer
        return {"message": {"role": "assistant", "content": content}, "finishReason": "stop"}


@dataclass
class World:
    """Everything of one scenario; `reopen` stands for a new process on the same folder."""

    folder: Path
    faults: dict[str, Any]
    model: ScriptedModel
    service: FulfillmentService
    store: RecoveryStore
    runtime: Runtime

    def writes(self, path: str) -> int:
        return self.service.writes(path)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the service's own database."""
        with sqlite3.connect(self.folder / "service.sqlite") as connection:
            return connection.execute(sql).fetchall()

    def stock(self) -> int:
        return int(self.rows("SELECT quantity FROM inventory")[0][0])

    def requests(self) -> list[tuple[str, str]]:
        return [(m, p) for m, p in self.rows("SELECT method, path FROM requests ORDER BY number")]

    def result(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "results" / f"{ID}.json").read_text())
        return document

    async def events(self, kind: str | None = None) -> list[str]:
        return [event.kind for event in await self.store.events(ID) if kind is None or event.kind == kind]

    def edit(self, change: Mapping[str, Any]) -> None:
        """Change the saved task behind the store's back."""
        with sqlite3.connect(self.folder / "tasks.sqlite") as connection:
            (text,) = connection.execute("SELECT document FROM jobs WHERE id = ?", (ID,)).fetchone()
            document = json.dumps({**json.loads(text), **change})
            connection.execute("UPDATE jobs SET document = ? WHERE id = ?", (document, ID))

    async def call(self, name: str, **arguments: Any) -> Any:
        """One tool call through the runtime."""
        call = {"id": "c", "name": name, "arguments": {"id": ID, **arguments}}
        return await self.runtime.invoke("INTERACTION.ACT.TOOL", {"call": call})


@asynccontextmanager
async def world(
    folder: Path,
    *,
    stock: int = 20,
    faults: Mapping[str, Any] | None = None,
    answers: list[Any] | None = None,
    create: bool = True,
    approval: bool = False,
    text: str = TEXT,
    network: bool = True,
) -> AsyncIterator[World]:
    """Open a world in a folder; `create=False` reopens what is there."""
    if create:
        (folder / f"{ID}.txt").write_text(text)
    service = await start_fulfillment_service(
        folder / "service.sqlite", [{"sku": "SKU-731", "quantity": stock}], dict(faults or {})
    )
    store = RecoveryStore(folder, service.url)
    if create:
        await store.create(ID, approval)
    model = ScriptedModel(answers if answers is not None else [None])
    runtime = create_runtime(
        sandbox={"tools": [tool.name for tool in store.tools], "network": [service.url] if network else []},
        workers=[
            create_context_worker(),
            create_infer_worker(providers={"scripted": model}),
            create_interaction_worker(tools=list(store.tools)),
        ],
    )
    try:
        yield World(folder, dict(faults or {}), model, service, store, runtime)
    finally:
        await runtime.close()
        await store.close()
        await service.close()
