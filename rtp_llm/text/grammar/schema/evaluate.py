# SPDX-License-Identifier: Apache-2.0
"""Whether a value satisfies a schema: for the values that `enum` and `const` list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.pattern import matches
from rtp_llm.text.grammar.schema.atoms import (
    Absent,
    Atom,
    Bound,
    Counted,
    ItemAt,
    ItemsFrom,
    Length,
    Matching,
    Multiple,
    Names,
    Present,
    Properties,
    PropertyIs,
    Unique,
    Unsupported,
    Values,
    Whole,
)
from rtp_llm.text.grammar.schema.document import Literal
from rtp_llm.text.grammar.schema.formula import Formulas
from rtp_llm.text.grammar.schema.values import canonical, decimal, kind_of

Holds = Callable[[Literal, Any], bool]


class Evaluator:
    """Evaluates the formulas of a document; unless `strict`, what is not supported holds."""

    def __init__(self, formulas: Formulas, *, strict: bool) -> None:
        self._formulas = formulas
        self._strict = strict

    def holds(self, literals: Iterable[Literal], value: Any) -> bool:
        """Whether `value` satisfies all of `literals`."""
        return all(self._literal(literal, value) for literal in literals)

    def conjunction(self, atoms: Iterable[Atom], value: Any) -> bool:
        """Whether `value`, of the atoms' type, satisfies all of `atoms`."""
        return all(self._atom(atom, value) for atom in atoms)

    def _literal(self, literal: Literal, value: Any) -> bool:
        formula = self._formulas.of(literal, kind_of(value))
        return any(self.conjunction(atoms, value) for atoms in formula)

    def _atom(self, atom: Atom, value: Any) -> bool:
        if isinstance(atom, Unsupported):
            if self._strict:
                raise GrammarError(atom.reason, atom.keyword)
            return True
        return _CHECKS[type(atom)](atom, value, self._literal)


def _values(atom: Values, value: Any, _: Holds) -> bool:
    return (canonical(value) in atom.key.split("\n")) == atom.listed


def _bound(atom: Bound, value: Any, _: Holds) -> bool:
    number = decimal(value)
    if number == atom.value:
        return not atom.exclusive
    return (number > atom.value) == atom.lower


def _multiple(atom: Multiple, value: Any, _: Holds) -> bool:
    return (Fraction(decimal(value)) / Fraction(atom.factor)).denominator == 1


def _whole(atom: Whole, value: Any, _: Holds) -> bool:
    return isinstance(value, int) or value.is_integer()


def _length(atom: Length, value: Any, _: Holds) -> bool:
    return atom.minimum <= len(value) and (atom.maximum is None or len(value) <= atom.maximum)


def _matching(atom: Matching, value: Any, _: Holds) -> bool:
    return matches(atom.pattern, value)


def _item_at(atom: ItemAt, value: Any, holds: Holds) -> bool:
    return atom.index >= len(value) or holds(atom.literal, value[atom.index])


def _items_from(atom: ItemsFrom, value: Any, holds: Holds) -> bool:
    return all(holds(atom.literal, item) for item in value[atom.index :])


def _counted(atom: Counted, value: Any, holds: Holds) -> bool:
    count = sum(holds(atom.literal, item) for item in value[atom.index :])
    return atom.minimum <= count and (atom.maximum is None or count <= atom.maximum)


def _unique(atom: Unique, value: Any, _: Holds) -> bool:
    return len({canonical(item) for item in value}) == len(value)


def _present(atom: Present, value: Any, _: Holds) -> bool:
    return atom.name in value


def _absent(atom: Absent, value: Any, _: Holds) -> bool:
    return atom.name not in value


def _property_is(atom: PropertyIs, value: Any, holds: Holds) -> bool:
    return atom.name not in value or holds(atom.literal, value[atom.name])


def _properties(atom: Properties, value: Any, holds: Holds) -> bool:
    named = dict(atom.named)
    return all(
        holds(literal, inner)
        for name, inner in value.items()
        for literal in literals_of(atom, named, name)
    )


def _names(atom: Names, value: Any, holds: Holds) -> bool:
    return all(holds(atom.literal, name) for name in value)


def literals_of(atom: Properties, named: dict[str, Literal], name: str) -> list[Literal]:
    """The constraints that the atom, with properties `named`, puts on the property `name`."""
    found = [named[name]] if name in named else []
    found += [literal for pattern, literal in atom.patterns if matches(pattern, name)]
    return found or [atom.rest]


_CHECKS: dict[type, Callable[[Any, Any, Holds], bool]] = {
    Values: _values,
    Bound: _bound,
    Multiple: _multiple,
    Whole: _whole,
    Length: _length,
    Matching: _matching,
    ItemAt: _item_at,
    ItemsFrom: _items_from,
    Counted: _counted,
    Unique: _unique,
    Present: _present,
    Absent: _absent,
    PropertyIs: _property_is,
    Properties: _properties,
    Names: _names,
}
