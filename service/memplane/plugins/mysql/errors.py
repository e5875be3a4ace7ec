"""What the driver's errors mean here. Their text goes nowhere."""

from __future__ import annotations

from typing import Final

from asyncmy.errors import MySQLError

DUPLICATE: Final = 1062
_RETRIED: Final = frozenset({1205, 1213, 1020})
"""Lock wait timeout, deadlock, and MariaDB's "record has changed since last read"."""

_AWAY: Final = frozenset(
    {
        1040,  # too many connections
        1044,  # access denied
        1045,
        1049,  # unknown database
        1053,  # shutdown in progress
        1129,  # host blocked
        1130,
        1152,  # aborted connection
        1203,  # too many connections of this user
        1226,
        1290,  # read only
        1317,  # interrupted
        1698,
        1792,  # read only transaction
        1836,
        1927,  # connection killed
        1969,  # statement timeout, MariaDB
        3024,  # statement timeout, MySQL
    }
)


class StoreAway(Exception):  # noqa: N818 - a state
    """The database does not answer, refuses us, or took too long. `sent`: whether a statement may have run."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("the database is away")
        self.sent = sent


class DuplicateKey(Exception):  # noqa: N818 - an answer
    """A row with that unique key is there."""


class LostRace(Exception):  # noqa: N818 - an instruction to start over
    """Deadlock or lock wait timeout: roll back and try again."""


class StatementRefused(Exception):  # noqa: N818 - an answer
    """Anything else that the server refuses; `code` is MySQL's number."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the database refused a statement (error {code})")
        self.code = code


def code_of(error: MySQLError) -> int:
    """MySQL's error number; 0 when the driver gives none."""
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) else 0


def is_lost(error: MySQLError) -> bool:
    """Whether the connection cannot be used any more: errors of the client library and of a server that hangs up."""
    code = code_of(error)
    return code == 0 or 2000 <= code < 3000 or code in (1053, 1152, 1927)


def translated(error: MySQLError) -> Exception:
    """Our exception for the driver's."""
    code = code_of(error)
    if is_lost(error) or code in _AWAY:
        return StoreAway(sent=True)
    if code in _RETRIED:
        return LostRace()
    if code == DUPLICATE:
        return DuplicateKey()
    return StatementRefused(code)
