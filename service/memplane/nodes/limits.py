"""Default limits of QUERY and SEARCH and where they come from.

request > factory defaults > defaults of the call (a runtime's YAML) > 100 and 10. A default is no cap: a request may
ask for more, up to 10,000 (cases M-49 to M-53).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.contracts import MAX_LIMIT
from memplane.errors import SettingsError
from memplane.nodes.shapes import integer, is_object

QUERY_LIMIT = "queryLimit"
SEARCH_LIMIT = "searchLimit"
BUILT_IN: Mapping[str, int] = {QUERY_LIMIT: 100, SEARCH_LIMIT: 10}


class InvalidDefaults(SettingsError, ValueError):  # noqa: N818 - names the state it reports
    """A default limit is out of range. The message names the key and the range."""


def check_defaults(defaults: Any) -> dict[str, int]:
    """A checked copy; None means none. Every key is checked, unknown ones too. Raises `InvalidDefaults`."""
    if defaults is None:
        return {}
    if not is_object(defaults):
        raise InvalidDefaults("defaults must be an object")
    checked: dict[str, int] = {}
    for key, value in defaults.items():
        number = integer(value, 1, MAX_LIMIT)
        if number is None:
            raise InvalidDefaults(f"{key} must be an integer in 1..{MAX_LIMIT}")
        checked[key] = number
    return checked


def default_limit(key: str, *layers: Mapping[str, int]) -> int:
    """The limit of the first layer that has one, else the built-in."""
    for layer in layers:
        if key in layer:
            return layer[key]
    return BUILT_IN[key]
