"""The command line: `memplane --help`."""

from __future__ import annotations


def main() -> None:
    """Run the command that `sys.argv` names; ends the process with an exit code of `exit_codes.py`."""
    from memplane.cli.app import run

    run()
