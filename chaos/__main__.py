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

from chaos.run import Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long things are broken (default 180)")
    parser.add_argument("--seed", type=int, help="repeats the faults and calls of another run; drawn when left out")
    parser.add_argument("--rate", type=float, default=40.0, help="calls per second of all clients together")
    parser.add_argument("--keep", action="store_true", help="keep journals, logs and data, even when all is well")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}; repeat with: make chaos ARGS='--seconds {arguments.seconds:g} --seed {seed}'", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="memplane-chaos-"))
    folder.chmod(0o711)  # PostgreSQL runs under an account of its own
    began = time.monotonic()
    run = Run(folder, seed, arguments.seconds, arguments.rate)
    for name in ("pymilvus", "neo4j"):
        # Their own words about servers that we have just killed.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        asyncio.run(_until_told(run))
    except asyncio.CancelledError:
        run.verdict.findings.append("the run was told to stop before its end")
    finally:
        if arguments.keep or run.verdict.findings or sys.exc_info()[0] is not None:
            print(f"journals and logs: {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(run.verdict.figures, indent=2, ensure_ascii=False, default=str))
        for finding in run.verdict.findings:
            print(f"BROKEN  {finding}")
    print(f"seed {seed}: {len(run.verdict.findings)} findings, {time.monotonic() - began:.0f} s")
    return 1 if run.verdict.findings else 0


async def _until_told(run: Run) -> None:
    """SIGTERM ends what was started, as Ctrl-C does."""
    working = asyncio.create_task(run.work())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    await working


if __name__ == "__main__":
    sys.exit(main())
