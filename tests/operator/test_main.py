"""The operator's entry point: what it says before it can do anything."""

from __future__ import annotations

import pytest

from memplane_operator.__main__ import main


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
