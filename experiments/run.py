"""Runs every experiment and prints the table. Started by `python -m experiments` inside the clean environment."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments.scenarios import EXPERIMENTS, Experiment
from experiments.trial import Row, real_model, run_experiment

HEADINGS = ("experiment", "killed at", "outcome", "model calls", "reservations", "shipments", "stock")


def table(rows: list[Row]) -> str:
    """As Markdown, so that it can be pasted into a page."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for row in rows:
        killed = ", ".join(f"`{point}`" for point in row.killed) or "–"
        calls = "–" if row.model_calls is None else row.model_calls
        outcome = row.outcome if row.off is None else f"**OFF**: {row.off}"
        cells = (row.experiment, killed, outcome, calls, row.reservations, row.shipments, row.stock)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def chosen(words: list[str], scripted: bool) -> list[Experiment]:
    """The experiments whose names hold one of the words; a real model cannot be told to fail."""
    found = [one for one in EXPERIMENTS if not words or any(word in one.name for word in words)]
    return [one for one in found if scripted or not any(step.model for step in one.steps)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where each experiment gets a folder")
    parser.add_argument("words", nargs="*", help="run only experiments whose names hold one of these")
    arguments = parser.parse_args()
    model = real_model()
    experiments = chosen(arguments.words, model is None)
    started = time.monotonic()

    def run(number: int) -> Row:
        return run_experiment(experiments[number], arguments.folder / f"{number + 1:02}", model)

    with ThreadPoolExecutor(3) as pool:
        rows = list(pool.map(run, range(len(experiments))))
    sys.stdout.write(table(rows) + "\n\n")
    off = [row for row in rows if row.off is not None]
    seconds = time.monotonic() - started
    sys.stdout.write(f"{len(rows)} experiments, {len(off)} off, {seconds:.0f} s\n")
    return 1 if off or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
