"""The example store of `docs/examples`, made known as an installer would and chosen by name, passes the suite."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from memplane.conformance import StoreConformance
from memplane.contracts import StoreBackend
from memplane.errors import SettingsError
from memplane.plugins.registry import Resources, create_store

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "sqlite-store"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Writes the metadata that an installer makes of the example's pyproject.toml, and puts both on the path."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("site")
    metadata = folder / f"memplane_sqlite-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    )
    (metadata / "entry_points.txt").write_text(groups)
    added = [str(folder), str(EXAMPLE)]
    sys.path[:0] = added
    importlib.invalidate_caches()
    yield
    for path in added:
        sys.path.remove(path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "memplane_sqlite"]:
        del sys.modules[name]


class TestExampleStore(StoreConformance):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[StoreBackend]:  # type: ignore[override]
        backend = create_store("sqlite", {"path": str(tmp_path / "memories.db")}, Resources())
        await backend.start()
        yield backend
        await backend.close()


def test_its_options_are_checked_like_those_of_built_in_plugins() -> None:
    with pytest.raises(SettingsError, match=r"store\.options of 'sqlite': path: Field required"):
        create_store("sqlite", {}, Resources())
    with pytest.raises(SettingsError, match=r"unknown store plugin 'sqlit'; known: .*sqlite"):
        create_store("sqlit", {}, Resources())
