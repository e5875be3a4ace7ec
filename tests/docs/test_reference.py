"""The reference pages say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.generate import FOLDER, pages

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["settings.md", "cli.md", "api.md"])
def test_a_generated_page_is_what_the_code_gives(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "run `make docs`"


def test_every_metric_of_the_code_is_documented_and_the_other_way_round() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "service" / "memplane").rglob("*.py"))
    page = (FOLDER / "metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(mem[a-z_]+)` \|", page, re.MULTILINE))
    defined = set(re.findall(r"(?:Counter|Gauge|Histogram|MetricFamily)\(\s*\"(mem[a-z_]+)\"", sources))
    # The client library gives a counter its suffix.
    assert {name.removesuffix("_total") for name in defined} == {name.removesuffix("_total") for name in documented}


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} → {target}")
    assert not broken


def test_decision_records_have_distinct_numbers_and_the_form_of_the_template() -> None:
    records = sorted(
        path for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md") if not path.name.startswith("0000")
    )
    numbers = [path.name[:4] for path in records]
    assert len(set(numbers)) == len(numbers) > 0
    for path in records:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {path.name[:4]}: "), path.name
        assert "## Decision" in text, path.name


def test_every_make_target_in_the_documentation_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"`make ([a-z0-9-]+)", page.read_text(encoding="utf-8")):
            assert target in known, f"{page.name} names make {target}"
