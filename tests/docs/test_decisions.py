"""Decision records: one number each, and an index that lists all of them by their titles."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"


def test_the_index_lists_every_record_once() -> None:
    wanted = []
    for path in sorted(FOLDER.glob("0*.md")):
        heading = re.match(r"# (\d{4}|NNNN): (.+)\n", path.read_text(encoding="utf-8"))
        assert heading is not None, path.name
        if path.name != "0000-template.md":
            assert path.name.startswith(heading[1] + "-"), path.name
            wanted.append(f"| [{heading[1]}]({path.name}) | {heading[2]} |")
    listed = re.findall(r"^\| \[.*$", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == wanted
    numbers = [line[3:7] for line in listed]
    assert len(set(numbers)) == len(numbers)
