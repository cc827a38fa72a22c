# SPDX-License-Identifier: Apache-2.0
"""One option of the settings table: its kind, limits and help, and how its value is parsed."""

from __future__ import annotations

import dataclasses
import logging
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

_logger = logging.getLogger("rtp_llm.config")

Kind = Literal["text", "names", "integer", "number", "switch"]

SWITCH_WORDS = {
    "on": True,
    "true": True,
    "1": True,
    "yes": True,
    "off": False,
    "false": False,
    "0": False,
    "no": False,
}


class SettingsError(ValueError):
    """A setting is unknown or has a bad value; the message names it."""


@dataclass(frozen=True)
class Option:
    """The table's entry for one field of `Settings`.

    `automatic` describes the meaning of None ("auto" on the command line); it is empty if None is
    not allowed.
    """

    kind: Kind
    group: str
    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    """Old names of choices with their new ones, which are taken for one version."""
    synonyms: tuple[tuple[str, str], ...] = ()
    """What other engines call choices, with our words for them."""
    minimum: float | None = None
    maximum: float | None = None
    automatic: str = ""
    secret: bool = False
    positional: bool = False
    advanced: bool = False
    """Shown by --help-all only."""
    aliases: tuple[str, ...] = ()
    """Flags of other engines that are taken for its own."""
    constants: tuple[tuple[str, str], ...] = ()
    """Flags of other engines that stand for a value."""
    former: str = ""
    """The field's name in the previous version, still taken as flag, variable and key."""
    after: str = ""
    """The field of another class that it follows in the documentation; empty: in declared order."""

    def parse(self, name: str, value: object) -> Any:
        """Convert a string (flag, environment) or a TOML value to a checked value of this option.

        Raises SettingsError naming `name` if the value is invalid.
        """
        if self.automatic and (value is None or value == "auto"):
            return None
        if self.choices and isinstance(value, str):
            value = value.strip().lower()
        parsed = _PARSERS[self.kind](name, value)
        if self.automatic and parsed == ():
            return None
        self.check(name, parsed)
        return parsed

    def check(self, name: str, value: object) -> None:
        """Raise SettingsError unless `value` has the right type and lies in the allowed range."""
        if value is None and self.automatic:
            return
        if not _has_kind(value, self.kind):
            raise SettingsError(f"{name}: {value!r} is not {_WORDS[self.kind]}")
        known = (*self.choices, *dict(self.renamed), *dict(self.synonyms))
        if self.choices and value not in known:
            raise SettingsError(f"{name}: {value!r} is not one of {', '.join(self.choices)}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self._check_range(name, value)

    def current(self, name: str, value: Any) -> Any:
        """Translate an old name of a choice, with a warning; return other values unchanged."""
        value = dict(self.synonyms).get(value, value) if self.synonyms else value
        new = dict(self.renamed).get(value) if self.renamed else None
        if new is None:
            return value
        _logger.warning(
            "%s %s is called %s now; the next version drops the old name",
            flag_name(name),
            value,
            new,
        )
        return new

    def _check_range(self, name: str, value: float) -> None:
        if self.minimum is not None and value < self.minimum:
            wanted = f"the minimum {plain_number(self.minimum)}"
            raise SettingsError(f"{name}: {plain_number(value)} is below {wanted}")
        if self.maximum is not None and value > self.maximum:
            wanted = f"the maximum {plain_number(self.maximum)}"
            raise SettingsError(f"{name}: {plain_number(value)} is above {wanted}")

    def show(self, value: object) -> str:
        """The value as a user would type it; a secret is masked."""
        if value is None:
            return "auto" if self.automatic else ""
        if self.secret:
            return "***"
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple):
            return ",".join(value)
        return plain_number(value) if isinstance(value, (int, float)) else str(value)

    def describe_values(self) -> str:
        """The accepted values in words, for --help and the documentation."""
        words = self._range_words()
        return f"auto or {words}" if self.automatic and "auto" not in self.choices else words

    def _range_words(self) -> str:
        if self.choices:
            return ", ".join(self.choices)
        if self.kind == "switch":
            return "on, off"
        if self.kind in ("text", "names"):
            return _WORDS[self.kind].removeprefix("a ")
        unit = f" ({self.unit})" if self.unit else ""
        noun = self.kind
        low, high = self.minimum, self.maximum
        if low is not None and high is not None:
            return f"{noun} {plain_number(low)} to {plain_number(high)}{unit}"
        return f"{noun} >= {plain_number(low)}{unit}" if low is not None else noun + unit


def plain_number(value: float) -> str:
    """The number as people write it: 1048576 and 0.00001, never with an exponent."""
    if isinstance(value, int):
        return str(value)
    digits = f"{Decimal(repr(value)):f}"
    return digits.removesuffix(".0")


_WORDS = {
    "text": "a text",
    "names": "one or more names",
    "integer": "a whole number",
    "number": "a number",
    "switch": "on or off (true/false, 1/0)",
}


def _has_kind(value: object, kind: Kind) -> bool:
    if kind == "switch":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == "integer":
        return isinstance(value, int)
    if kind == "number":
        return isinstance(value, (int, float)) and math.isfinite(value)
    if kind == "names":
        return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    return isinstance(value, str)


def _parse_text(name: str, value: object) -> object:
    return value


def _parse_names(name: str, value: object) -> object:
    """Parse comma-separated text, or a list of it, to a tuple without duplicates."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(each, str) for each in words):
        return value
    names = (each.strip() for word in words for each in word.split(","))
    return tuple(dict.fromkeys(each for each in names if each))


def _parse_integer(name: str, value: object) -> object:
    if isinstance(value, str):
        try:
            return int(value.strip().replace("_", ""), 10)
        except ValueError:
            return value
    return value


def _parse_number(name: str, value: object) -> object:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _parse_switch(name: str, value: object) -> object:
    if isinstance(value, str):
        return SWITCH_WORDS.get(value.strip().lower(), value)
    return bool(value) if value in (0, 1) else value


_PARSERS = {
    "text": _parse_text,
    "names": _parse_names,
    "integer": _parse_integer,
    "number": _parse_number,
    "switch": _parse_switch,
}


def flag_name(name: str) -> str:
    """The documented flag of a field."""
    return "--" + name.replace("_", "-")


class CheckedSettings:
    """Base of dataclasses with fields made by option(); raises SettingsError for invalid values.

    Switches also accept the words of the command line, 0 and 1; names may be a string or a list.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # what derives from it is one
            info: Option = field.metadata["option"]
            given = value = getattr(self, field.name)
            if info.kind in ("switch", "names"):
                value = info.parse(field.name, given)
            else:
                info.check(field.name, given)
                value = info.current(field.name, given)
            if value is not given:
                object.__setattr__(self, field.name, value)


def option(default: object, kind: Kind, group: str, help: str, **limits: Any) -> Any:
    """A dataclass field that carries its Option; `limits` are the other fields of Option."""
    info = Option(kind=kind, group=group, help=help, **limits)
    return dataclasses.field(default=default, metadata={"option": info}, repr=not info.secret)
