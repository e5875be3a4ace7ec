"""`memplane dev`: everything in one process, on servers that live in a folder. For trying out and for demos."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from memplane.api.compose import ServiceProcess
from memplane.api.connections import enabled_targets, truth_in_postgres
from memplane.cli.embedded import embedded_postgres, locked
from memplane.outbox.events import Target
from memplane.schema.database import Database
from memplane.schema.migrate import migrate
from memplane.settings import Settings, load_settings

LITE_TIMEOUT = 60
"""Seconds for a call to Milvus Lite: the first one starts it, which takes long on a small machine."""


@asynccontextmanager
async def dev_process(
    data: Path,
    *,
    port: int,
    config: Path | None = None,
    overrides: Mapping[str, Mapping[str, object]] | None = None,
) -> AsyncIterator[ServiceProcess]:
    """A service process with the workers of all its targets, not yet started; migrated and ready for `serve`.

    PostgreSQL and Milvus are the configured ones, else PostgreSQL and Milvus Lite in `data`; with another store than
    `postgres` neither is made. Authentication is off and
    the address is loopback, whatever is configured. Raises `SettingsError` when `data` is in use.
    """
    with ExitStack() as stack:
        stack.enter_context(locked(data))
        settings = load_settings(config, _with_defaults(overrides or {}, port))
        extra: dict[str, dict[str, object]] = {}
        in_postgres = truth_in_postgres(settings)
        if in_postgres and settings.postgres.dsn is None and settings.postgres.dsn_file is None:
            extra["postgres"] = {"dsn": stack.enter_context(embedded_postgres(data / "postgres"))}
        if in_postgres and not settings.milvus.enabled:
            extra["milvus"] = {"uri": str((data / "milvus.db").resolve()), "timeout": LITE_TIMEOUT}
        settings = _overridden(settings, extra)
        if in_postgres:
            await _migrate(settings)
        yield ServiceProcess(settings, worker_targets=enabled_targets(settings) - {Target.LTM_CACHE})


def _with_defaults(overrides: Mapping[str, Mapping[str, object]], port: int) -> dict[str, object]:
    fixed: dict[str, dict[str, object]] = {
        "auth": {"mode": "none"},
        "service": {"host": "127.0.0.1", "port": port},
        "log": {"format": "text"},
    }
    for section, values in overrides.items():
        fixed[section] = {**values, **fixed.get(section, {})}
    return dict(fixed)


def _overridden(settings: Settings, extra: Mapping[str, Mapping[str, object]]) -> Settings:
    changed = {
        section: type(getattr(settings, section)).model_validate(
            {**getattr(settings, section).model_dump(exclude_unset=True), **values}
        )
        for section, values in extra.items()
    }
    return settings.model_copy(update=changed)


async def _migrate(settings: Settings) -> None:
    database = Database(settings.postgres, application_name="memplane-dev")
    try:
        await migrate(database)
    finally:
        await database.close()
