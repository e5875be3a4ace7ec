"""`python -m chaos [--seconds N] [--seed N]`: exit code 0 when everything held, 1 with the list of what did not."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from chaos.run import Run, Verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=210.0, help="how long things are broken (default 210)")
    parser.add_argument("--seed", type=int, help="repeats the faults and calls of another run; drawn when left out")
    parser.add_argument("--rate", type=float, default=40.0, help="calls per second of all clients together")
    parser.add_argument("--keep", action="store_true", help="keep journals, logs and data, even when all is well")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}; repeat with: make chaos ARGS='--seconds {arguments.seconds:g} --seed {seed}'", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="memplane-chaos-"))
    folder.chmod(0o711)  # PostgreSQL runs under an account of its own
    began = time.monotonic()
    keep = True
    for name in ("pymilvus", "neo4j"):
        # Their own words about servers that we have just killed.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        verdict = asyncio.run(_until_told(Run(folder, seed, arguments.seconds, arguments.rate)))
        keep = arguments.keep or bool(verdict.findings)
    finally:
        if keep:
            print(f"journals and logs: {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(verdict.figures, indent=2, ensure_ascii=False, default=str))
    for finding in verdict.findings:
        print(f"BROKEN  {finding}")
    print(f"seed {seed}: {len(verdict.findings)} findings, {time.monotonic() - began:.0f} s")
    return 1 if verdict.findings else 0


async def _until_told(run: Run) -> Verdict:
    """SIGTERM ends what was started, as Ctrl-C does."""
    working = asyncio.create_task(run.work())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    return await working


if __name__ == "__main__":
    sys.exit(main())
