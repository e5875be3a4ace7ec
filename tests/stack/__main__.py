"""`python -m tests.stack up|down|status|fetch`."""

from __future__ import annotations

import argparse
import sys

from tests.stack import control, neo4j
from tests.stack.model import StackError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stack", description=__doc__)
    parser.add_argument("action", choices=["up", "down", "status", "fetch"])
    action = parser.parse_args().action
    try:
        if action == "down":
            print("ended" if control.down() else "was not running")
            return 0
        if action == "fetch":
            neo4j.fetch()
            return 0
        if action == "up":
            control.up()
        stack, answering = control.status()
    except StackError as error:
        print(f"tests.stack: {error}", file=sys.stderr)
        return 1
    if stack is None:
        print("not running")
        return 1
    for name, answer in answering.items():
        server = getattr(stack, name)
        print(f"{name:9} {server.host}:{server.port}  {'answers' if answer else 'does not answer'}")
    print(f"passwords are in {control.FILE.relative_to(control.ROOT)}")
    return 0 if all(answering.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
