# SPDX-License-Identifier: Apache-2.0
"""The atoms of a schema's formula: constraints that keywords put on a value of one type."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rtp_llm.text.grammar.schema.document import Literal

KINDS = ("null", "boolean", "number", "string", "array", "object")
"""JSON's types; integers are numbers with the atom `Whole`."""


@dataclass(frozen=True)
class Values:
    """The value is one of `values`, or if not `listed`, none of them (`enum` and `const`)."""

    key: str
    values: tuple[Any, ...]
    listed: bool

    def __hash__(self) -> int:
        return hash((self.key, self.listed))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and (self.key, self.listed) == (other.key, other.listed)


@dataclass(frozen=True)
class Unsupported:
    """A constraint that no grammar can express, checkable only together with a list of values."""

    keyword: str
    reason: str


@dataclass(frozen=True)
class Bound:
    """A number is at least (`lower`) or at most `value`, or beyond it (`exclusive`)."""

    lower: bool
    value: Decimal
    exclusive: bool


@dataclass(frozen=True)
class Multiple:
    """A number is a multiple of `factor`."""

    factor: Decimal


@dataclass(frozen=True)
class Whole:
    """A number is an integer."""


@dataclass(frozen=True)
class Length:
    """From `minimum` to `maximum` characters, items or properties."""

    minimum: int = 0
    maximum: int | None = None


@dataclass(frozen=True)
class Matching:
    """A string is one that the whole of `pattern` (Rust's syntax) matches."""

    pattern: str


@dataclass(frozen=True)
class ItemAt:
    """The item at `index`, where there is one."""

    index: int
    literal: Literal


@dataclass(frozen=True)
class ItemsFrom:
    """Every item from `index` on."""

    index: int
    literal: Literal


@dataclass(frozen=True)
class Counted:
    """From `minimum` to `maximum` of the items from `index` on."""

    index: int
    literal: Literal
    keyword: str
    minimum: int = 1
    maximum: int | None = None


@dataclass(frozen=True)
class Unique:
    """No two items are equal."""

    pointer: str


@dataclass(frozen=True)
class Present:
    """The object has the property."""

    name: str


@dataclass(frozen=True)
class Absent:
    """The object lacks the property."""

    name: str


@dataclass(frozen=True)
class PropertyIs:
    """The value of the property, where there is one."""

    name: str
    literal: Literal


@dataclass(frozen=True)
class Properties:
    """Values of properties: by name, by pattern (Rust's syntax), of those that neither names."""

    named: tuple[tuple[str, Literal], ...]
    patterns: tuple[tuple[str, Literal], ...]
    rest: Literal


@dataclass(frozen=True)
class Names:
    """The names of all properties satisfy the literal (propertyNames)."""

    literal: Literal
    pointer: str


Atom = (
    Values
    | Unsupported
    | Bound
    | Multiple
    | Whole
    | Length
    | Matching
    | ItemAt
    | ItemsFrom
    | Counted
    | Unique
    | Present
    | Absent
    | PropertyIs
    | Properties
    | Names
)
Conjunction = tuple[Atom, ...]
Formula = tuple[Conjunction, ...]
"""One of the conjunctions at least."""
TRUE: Formula = ((),)
FALSE: Formula = ()
