"""One tree of settings: defaults, then the file, then the environment, then what the caller overrides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memplane.errors import SettingsError
from memplane.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("MEMPLANE_"):
            monkeypatch.delenv(name)


def test_the_order_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("postgres: {pool_min: 2, pool_max: 20}\nservice: {port: 1000, host: localhost}\n")
    monkeypatch.setenv("MEMPLANE_CONFIG_FILE", str(path))
    monkeypatch.setenv("MEMPLANE_POSTGRES__POOL_MAX", "30")
    monkeypatch.setenv("MEMPLANE_SERVICE__PORT", "2000")
    loaded = load_settings(overrides={"service": {"port": 3000}})
    assert (loaded.postgres.pool_min, loaded.postgres.pool_max) == (2, 30)
    assert (loaded.service.host, loaded.service.port) == ("localhost", 3000)
    assert loaded.outbox == Settings().outbox
    other = tmp_path / "other.yaml"
    other.write_text("")
    assert load_settings(other).postgres.pool_min == 1, "a named file stands in for that of the environment"


def test_the_environment_alone_is_not_read_by_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPLANE_SERVICE__PORT", "2000")
    assert Settings().service.port == 8080
    assert load_settings().service.port == 2000


def test_service_links_of_kubernetes_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MEMPLANE_SERVICE_HOST", "MEMPLANE_PORT_8080_TCP_ADDR", "MEMPLANE_E2E_CONTEXT"):
        monkeypatch.setenv(name, "10.0.0.1")
    assert load_settings() == Settings()


def test_documents_of_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPLANE_EMBEDDING__OPTIONS", '{"dimensions": 64}')
    assert load_settings().embedding.options == {"dimensions": 64}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MEMPLANE_POSTGRE__DSN", "secret", "MEMPLANE_POSTGRE__DSN: there is no section 'postgre'"),
        ("MEMPLANE_POSTGRES__POOLMAX", "secret", "postgres.poolmax: unknown field; known fields are"),
        ("MEMPLANE_POSTGRES__POOL_MAX", "secret", "postgres.pool_max: Input should be a valid integer"),
        ("MEMPLANE_POSTGRES", "secret", "the environment cannot be read"),
        ("MEMPLANE_SERVICE__PORT", "70000", "service.port: Input should be less than or equal to 65535"),
    ],
)
def test_wrong_variables(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_all_wrong_fields_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("postgres: {pool_max: x}\ncache: {consistency: maybe}\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    assert "postgres.pool_max" in str(caught.value)
    assert "cache.consistency" in str(caught.value)


def test_secrets_do_not_show() -> None:
    shown = Settings.model_validate({"postgres": {"dsn": "postgresql://u:hidden@h/d"}})
    assert "hidden" not in f"{shown!r} {shown} {shown.model_dump_json()}"
