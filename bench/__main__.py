"""`python -m bench [--quick] [--rows write,drain] [--json FILE]`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from tests import stack as test_stack

from bench.frame import Bench, Result, show

ROWS = {
    "write": "bench.rows.write",
    "drain": "bench.rows.outbox_drain",
    "milvus": "bench.rows.milvus_projection",
    "neo4j": "bench.rows.neo4j_projection",
    "claim": "bench.rows.claim",
    "reconcile": "bench.rows.reconcile",
    "search": "bench.rows.search",
    "http-get": "bench.rows.http_get",
    "http-write": "bench.rows.http_write",
    "langgraph": "bench.rows.langgraph",
    "mem0": "bench.rows.mem0",
    "runtime": "bench.rows.runtime",
    "embeddings": "bench.rows.embeddings",
    "operator": "bench.rows.operator",
}
BY_NAME_ONLY = frozenset({"operator"})
"""Rows that need more than the servers of the tests: the operator's needs a Kubernetes cluster, as `make e2e` does."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--rows", default=",".join(n for n in ROWS if n not in BY_NAME_ONLY), help=f"comma-separated: {', '.join(ROWS)}"
    )
    parser.add_argument("--quick", action="store_true", help="small inputs: shows that the rows work, not how fast")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    names = arguments.rows.split(",")
    unknown = sorted(set(names) - set(ROWS))
    if unknown:
        parser.error(f"unknown rows {', '.join(unknown)}; known are {', '.join(ROWS)}")
    stack, using = test_stack.join()
    try:
        results, failed = measure(Bench(stack, quick=arguments.quick), names)
    finally:
        test_stack.leave(using)
    if arguments.json:
        arguments.json.write_text(json.dumps([one.as_json() for one in results], indent=2), encoding="utf-8")
    show(results, Console(width=140 if not sys.stdout.isatty() else None).print)
    for name in failed:
        print(f"the row {name} failed", file=sys.stderr)
    return 1 if failed else 0


def measure(bench: Bench, names: list[str]) -> tuple[list[Result], list[str]]:
    """Run the rows one after another; one that fails is told and does not keep the others from running."""
    results: list[Result] = []
    failed: list[str] = []
    for name in names:
        row = importlib.import_module(ROWS[name])
        bench.console.print(f"[bold]{name}[/bold]: {row.TITLE}", highlight=False)
        started = time.perf_counter()
        try:
            measured = asyncio.run(row.run(bench))
        except Exception:  # noqa: BLE001 - whatever a row fails with, the others still run
            bench.console.print_exception()
            failed.append(name)
            continue
        results += measured if isinstance(measured, list) else [measured]
        bench.say(f"took {time.perf_counter() - started:.0f} s")
        gc.collect()
    return results, failed


if __name__ == "__main__":
    raise SystemExit(main())
