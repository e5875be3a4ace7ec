"""The kinds of value a setting may have: each checks a value, says what is allowed, and writes its JSON schema.

Checked values come back deeply frozen (`MappingProxyType`, tuples). Errors give path, kind of the value and what is
allowed, never a text that was given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from memplane.errors import SettingsError
from memplane.runtime.canonical import NotJson, freeze, snapshot

LARGEST = 2**53 - 1


class Kind(Protocol):
    """One kind of value."""

    def check(self, path: str, value: Any) -> Any:
        """The frozen value. Raises `SettingsError`."""

    def schema(self) -> dict[str, Any]:
        """Its JSON schema (draft 2020-12)."""


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer in lowest..highest; `5.0` is one, `true` and `"5"` are not."""

    lowest: int
    highest: int
    about: str

    def check(self, path: str, value: Any) -> int:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(whole, bool) or not isinstance(whole, int) or not self.lowest <= whole <= self.highest:
            raise SettingsError(f"{path} must be an integer in {self.lowest}..{self.highest}, not {kind_of(value)}")
        return whole

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.lowest, "maximum": self.highest, "description": self.about}


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number in lowest..highest."""

    lowest: float
    highest: float
    about: str

    def check(self, path: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.lowest <= value <= self.highest:
            raise SettingsError(f"{path} must be a number in {self.lowest:g}..{self.highest:g}, not {kind_of(value)}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.lowest, "maximum": self.highest, "description": self.about}


@dataclass(frozen=True, slots=True)
class Text:
    """A nonempty string."""

    about: str

    def check(self, path: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise SettingsError(f"{path} must be a nonempty string, not {kind_of(value)}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "description": self.about}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]
    about: str

    def check(self, path: str, value: Any) -> str:
        if value not in self.words:
            raise SettingsError(f"{path} must be one of {', '.join(self.words)}, not {kind_of(value)}")
        word: str = value
        return word

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words), "description": self.about}


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of nonempty strings."""

    about: str

    def check(self, path: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list | tuple):
            raise SettingsError(f"{path} must be a list of nonempty strings, not {kind_of(value)}")
        return tuple(Text(self.about).check(f"{path}[{index}]", item) for index, item in enumerate(value))

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string", "minLength": 1}, "description": self.about}


@dataclass(frozen=True, slots=True)
class Document:
    """Any JSON object, handed on as it is."""

    about: str

    def check(self, path: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise SettingsError(f"{path} must be an object, not {kind_of(value)}")
        try:
            frozen: Mapping[str, Any] = freeze(snapshot(value))
        except NotJson:
            raise SettingsError(f"{path} must hold JSON values only") from None
        return frozen

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "description": self.about}


@dataclass(frozen=True, slots=True)
class Group:
    """A mapping with known keys, each optional."""

    about: str
    fields: Mapping[str, Kind]

    def check(self, path: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise SettingsError(f"{path or 'config'} must be an object, not {kind_of(value)}")
        checked: dict[str, Any] = {}
        for key, item in value.items():
            here = f"{path}.{key}" if path else str(key)
            field = self.fields.get(key) if isinstance(key, str) else None
            if field is None:
                raise SettingsError(f"Unknown setting: {here}")
            checked[key] = field.check(here, item)
        return MappingProxyType(checked)

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "description": self.about,
            "additionalProperties": False,
            "properties": {name: field.schema() for name, field in self.fields.items()},
        }


@dataclass(frozen=True, slots=True)
class Named:
    """A mapping from names of the user's choice to one kind."""

    about: str
    pattern: str
    each: Kind

    def check(self, path: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise SettingsError(f"{path} must be an object, not {kind_of(value)}")
        for name in value:
            if not isinstance(name, str) or not re.fullmatch(self.pattern, name):
                raise SettingsError(f"{path} has an invalid name; names match {self.pattern}")
        return MappingProxyType({name: self.each.check(f"{path}.{name}", item) for name, item in value.items()})

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "description": self.about,
            "additionalProperties": False,
            "patternProperties": {f"^{self.pattern}$": self.each.schema()},
        }


def kind_of(value: Any) -> str:
    """What a value is, in the words of JSON; numbers are shown, strings never (one may be a secret)."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, Mapping) else "a list"
