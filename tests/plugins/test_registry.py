"""Plugins by name: what is found, and what is said when it is not."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from memplane.errors import SettingsError
from memplane.plugins import registry
from memplane.plugins.registry import Resources, create_embedding, create_store, known, load_search, load_store


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 1


class GoodPlugin:
    settings_model = Options

    def create(self, settings: Options, resources: Resources) -> Any:
        return ("made", settings.size, resources)


good = GoodPlugin()
bad = object()


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    def entry_points(*, group: str) -> EntryPoints:
        return EntryPoints(EntryPoint(name, value, group) for name, value in found)

    monkeypatch.setattr(registry, "entry_points", entry_points)
    return found


def test_built_in_names_are_known() -> None:
    assert {"inmemory", "postgres"} <= set(known(registry.STORES))
    assert {"hashing", "openai", "sentence-transformers"} <= set(known(registry.EMBEDDINGS))
    assert {"native", "hybrid"} <= set(known(registry.SEARCH))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"unknown store plugin 'oracle'; known: .*inmemory.*postgres"):
        load_store("oracle")
    with pytest.raises(SettingsError, match="unknown search plugin ''"):
        load_search("")
    with pytest.raises(SettingsError, match="unknown embedding plugin 'x'; known: hashing"):
        create_embedding("x", {}, Resources())


def test_options_are_validated_by_the_plugins_model(points: list[tuple[str, str]]) -> None:
    points.append(("good", "plugin_under_test:good"))
    resources = Resources()
    assert create_store("good", {"size": 3}, resources) == ("made", 3, resources)
    with pytest.raises(SettingsError) as caught:
        create_store("good", {"size": "secret", "extra": "secret"}, resources)
    message = str(caught.value)
    assert message.startswith("store.options of 'good': size: ")
    assert "extra: Extra inputs are not permitted" in message
    assert "secret" not in message


@pytest.fixture(autouse=True)
def plugin_under_test(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import SimpleNamespace

    monkeypatch.setitem(sys.modules, "plugin_under_test", SimpleNamespace(good=good, bad=bad))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("plugin_under_test:bad", "must have a settings_model and a create method"),
        ("plugin_under_test:absent", "cannot be loaded from plugin_under_test:absent"),
        ("no_such_module_here:plugin", "needs the Python module 'no_such_module_here', which is not installed"),
    ],
)
def test_a_broken_registration_is_told_apart(points: list[tuple[str, str]], value: str, message: str) -> None:
    points.append(("broken", value))
    with pytest.raises(SettingsError, match=message):
        load_store("broken")


def test_one_name_for_two_plugins_is_refused_and_a_repeated_one_is_not(points: list[tuple[str, str]]) -> None:
    points += [("same", "plugin_under_test:good"), ("same", "plugin_under_test:good")]
    assert load_store("same") is good
    points.append(("same", "plugin_under_test:bad"))
    with pytest.raises(SettingsError, match="'same' is registered more than once"):
        load_store("same")


def test_an_absent_resource_is_named() -> None:
    with pytest.raises(SettingsError, match="the plugin 'postgres' needs database"):
        Resources().require("database", "postgres")
