"""The operator's entry point: what it says before it can do anything."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from memplane_operator import __main__ as operator
from memplane_operator.__main__ import main
from memplane_operator.settings import OperatorSettings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["MEMPLANE_OPERATOR_IMAGE: Field required"]),
        (
            {"MEMPLANE_OPERATOR_IMAGE": "memplane:1", "MEMPLANE_OPERATOR_WORKERS": "0"},
            ["MEMPLANE_OPERATOR_WORKERS: Input should be greater than or equal to 1"],
        ),
        (
            {"MEMPLANE_OPERATOR_PULL_POLICY": "Sometimes"},
            ["MEMPLANE_OPERATOR_IMAGE: Field required", "MEMPLANE_OPERATOR_PULL_POLICY: String should match"],
        ),
    ],
)
def test_wrong_settings_are_named_by_their_variables(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], expected: list[str]
) -> None:
    monkeypatch.delenv("MEMPLANE_OPERATOR_IMAGE", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main()
    text = str(ended.value)
    assert text.startswith("the operator's settings are wrong:")
    assert all(line in text for line in expected)


@pytest.mark.parametrize(("terms", "code"), [([True, True, None], 0), ([True, False], 1)])
async def test_who_lost_the_lease_stands_for_it_again(
    monkeypatch: pytest.MonkeyPatch, terms: list[bool | None], code: int
) -> None:
    """True: the Lease was lost; None: a signal came; False: a part of the operator ended by itself."""
    left = list(terms)

    async def term(*_: Any, stop: asyncio.Event, **__: Any) -> bool:
        outcome = left.pop(0)
        if outcome is None:
            stop.set()
        return bool(outcome)

    monkeypatch.setattr(operator, "_term", term)
    settings = OperatorSettings(image="memplane:1", http_port=0, identity="one")
    assert await operator.run(settings) == code
    assert left == []
