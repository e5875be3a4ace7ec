"""Result files: atomic, and nothing of a killed writer stays."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memplane.recovery.sources import write_result


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "results").glob(".*"))


def test_what_a_killed_writer_left_goes_with_the_next_result(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / ".one-killed.tmp").write_text("half")
    (tmp_path / "results" / ".two-killed.tmp").write_text("of another task")
    write_result(tmp_path, "one", {"stage": "completed"})
    assert hidden(tmp_path) == [".two-killed.tmp"]
    assert json.loads((tmp_path / "results" / "one.json").read_text()) == {"stage": "completed"}


def test_a_living_writers_file_is_left_alone(tmp_path: Path) -> None:
    def meanwhile() -> None:
        write_result(tmp_path, "one", {"writer": "inner"})
        assert len(hidden(tmp_path)) == 1

    write_result(tmp_path, "one", {"writer": "outer"}, before_rename=meanwhile)
    assert hidden(tmp_path) == []
    assert json.loads((tmp_path / "results" / "one.json").read_text()) == {"writer": "outer"}


def test_a_failed_writer_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_result(tmp_path, "one", {}, before_rename=fail)
    assert hidden(tmp_path) == []


def test_many_writers_of_one_task_do_not_take_each_others_files(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_result(tmp_path, "one", {"writer": number}), range(200)))
    assert hidden(tmp_path) == []
    assert json.loads((tmp_path / "results" / "one.json").read_text())["writer"] in range(200)
