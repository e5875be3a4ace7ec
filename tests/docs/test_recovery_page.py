"""The program of `docs/recovery/index.md` runs, with a model behind real HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments.model_server import ModelServer
from tests.docs.blocks import run_blocks


async def test_the_program_reserves_and_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = ModelServer()
    try:
        assert await run_blocks("recovery/index.md", {"model_url": model.url, "model_name": "scripted"}) == 2
        assert model.calls == 1
    finally:
        model.close()
