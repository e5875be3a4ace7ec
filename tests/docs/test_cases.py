"""Every behaviour case has a test, and the page of cases names no test that is gone."""

from __future__ import annotations

import re

import pytest
from docs.cases import BY_CONFORMANCE, SECTIONS, numbered_tests
from docs.generate import FOLDER

CASES = [(prefix, number) for prefix, (_, count) in SECTIONS.items() for number in range(1, count + 1)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}{case[1]:02}")
def test_the_case_has_a_test(case: tuple[str, int]) -> None:
    assert case in numbered_tests() or case in BY_CONFORMANCE


def test_no_test_carries_the_number_of_a_case_that_is_not_there() -> None:
    assert set(numbered_tests()) <= set(CASES)


def test_the_page_names_only_tests_that_exist() -> None:
    existing = {f"`{path}`: `{name}`" for tests in numbered_tests().values() for path, name in tests}
    page = (FOLDER / "cases.md").read_text(encoding="utf-8")
    named = {entry for entry in re.findall(r"`[^`]*`: `[^`]*`", page) if "test_" in entry}
    assert named, "run `make docs`"
    assert named <= existing, "run `make docs`"
