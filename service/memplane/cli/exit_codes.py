"""Exit codes: scripts and Jobs decide by them what to do next."""

from __future__ import annotations

from enum import IntEnum

from memplane.errors import IdentityError, MemplaneError, SchemaError, SettingsError, TargetUnavailable


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    """Something unexpected."""
    USAGE = 2
    """The command line is wrong."""
    SETTINGS = 3
    """A setting is missing or wrong: trying again changes nothing."""
    REFUSED = 4
    """Schema or identity do not fit: somebody must act first."""
    UNAVAILABLE = 5
    """A server does not answer: try again."""
    FOUND = 6
    """The command worked and found something to act on: drift, dead events, a problem that `doctor` names."""
    NOT_FOUND = 7
    """What the command was to show or change does not exist."""


def exit_code_of(error: MemplaneError) -> ExitCode:
    """The exit code that an error ends the process with."""
    if isinstance(error, SettingsError):
        return ExitCode.SETTINGS
    if isinstance(error, (SchemaError, IdentityError)):
        return ExitCode.REFUSED
    if isinstance(error, TargetUnavailable):
        return ExitCode.UNAVAILABLE
    return ExitCode.FAILED
