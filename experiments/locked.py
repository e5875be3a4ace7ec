"""The part of requirements.lock that an extra of memplane needs, with its hashes."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==")


def needed(extra: str) -> set[str]:
    """Canonical names of everything that memplane needs here with this extra, itself left out."""
    found: set[str] = set()
    waiting = [("memplane", frozenset({extra}))]
    while waiting:
        name, extras = waiting.pop()
        for requirement in _requirements(name, extras):
            other = canonicalize_name(requirement.name)
            if other not in found:
                found.add(other)
                waiting.append((other, frozenset(requirement.extras)))
    return found


def _requirements(name: str, extras: frozenset[str]) -> list[Requirement]:
    try:
        texts = requires(name) or []
    except PackageNotFoundError:
        raise SystemExit(f"{name} is not installed here: run `make venv` first") from None
    parsed = [Requirement(text) for text in texts]
    return [
        one for one in parsed if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in ("", *extras))
    ]


def locked_requirements(lock: Path, extra: str) -> str:
    """Their entries of the lock file, whole."""
    wanted, kept, keep = needed(extra), [], False
    for line in lock.read_text(encoding="utf-8").splitlines():
        entry = _ENTRY.match(line)
        if entry is not None:
            keep = canonicalize_name(entry["name"]) in wanted
        if keep and not line.startswith("#"):
            kept.append(line)
    return "\n".join(kept) + "\n"
