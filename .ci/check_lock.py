"""Does requirements.lock cover pyproject.toml? Needs no network.

Every dependency of the project, of its extras and of its groups must be in the lock in a version that its specifier
allows, every entry must carry a hash, and no address of a package host may stand in the file.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
UNLOCKED_EXTRAS = {"sentence-transformers"}
"""Extras that neither tests nor images install."""


def locked(text: str) -> tuple[dict[str, list[Version]], list[str]]:
    """Versions by name, and what is wrong with the file itself."""
    versions: dict[str, list[Version]] = {}
    problems = ["requirements.lock holds an address"] if "://" in text else []
    for entry in re.split(r"\n(?=\S)", text.strip()):
        if entry.startswith("#"):
            continue
        found = re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", entry)
        if found is None:
            problems.append(f"unreadable entry: {entry.splitlines()[0]}")
            continue
        if "--hash=sha256:" not in entry:
            problems.append(f"{found[1]} has no hash")
        versions.setdefault(canonicalize_name(found[1]), []).append(Version(found[2]))
    return versions, problems


def wanted(pyproject: dict[str, Any]) -> list[Requirement]:
    """All direct requirements, the project's own extras left out."""
    project = pyproject["project"]
    texts = [*project["dependencies"], *pyproject["build-system"]["requires"]]
    for name, extra in project["optional-dependencies"].items():
        texts += [] if name in UNLOCKED_EXTRAS else extra
    for group in pyproject["dependency-groups"].values():
        texts += group
    requirements = [Requirement(text) for text in texts]
    return [one for one in requirements if canonicalize_name(one.name) != project["name"]]


def main() -> int:
    versions, problems = locked((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    for requirement in wanted(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))):
        present = versions.get(canonicalize_name(requirement.name), [])
        if not any(requirement.specifier.contains(version, prereleases=True) for version in present):
            problems.append(f"{requirement} is not covered: make lock")
    for problem in problems:
        print(f"requirements.lock: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
