# SPDX-License-Identifier: Apache-2.0
"""Tracks which parts of a value a schema has evaluated, for unevaluatedProperties and -Items.

The formula is split until it is known which subschemas hold: every combination of anyOf, and either
side of `if`. Subschemas that hold report the properties and items that they evaluate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.schema.array_keywords import OF_ARRAYS
from rtp_llm.text.grammar.schema.atoms import (
    Absent,
    Atom,
    Conjunction,
    Formula,
    ItemAt,
    ItemsFrom,
    Present,
    Properties,
)
from rtp_llm.text.grammar.schema.document import Document, Literal, escaped
from rtp_llm.text.grammar.schema.object_keywords import OF_OBJECTS
from rtp_llm.text.grammar.schema.values import list_of, map_of

KEYWORDS = {"array": "unevaluatedItems", "object": "unevaluatedProperties"}
MAX_ALTERNATIVES = 512


@dataclass(frozen=True)
class Evaluated:
    """What was evaluated: names, patterns of names, leading items, items that match `contained`; or
    the whole value.
    """

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    items: int = 0
    contained: frozenset[Literal] = frozenset()
    everything: bool = False

    def __or__(self, other: Evaluated) -> Evaluated:
        return Evaluated(
            self.names | other.names,
            self.patterns | other.patterns,
            max(self.items, other.items),
            self.contained | other.contained,
            self.everything or other.everything,
        )

    def rest(self, document: Document, kind: str, literal: Literal) -> Conjunction:
        """The constraints that `literal` puts on the parts that were not evaluated."""
        if self.everything:
            return ()
        if kind == "array":
            allowed = document.either((literal, *self.contained), literal)
            return (ItemsFrom(self.items, allowed),)
        named = tuple((name, Literal(0)) for name in sorted(self.names))
        return (Properties(named, tuple((p, Literal(0)) for p in sorted(self.patterns)), literal),)


Annotated = tuple[tuple[Conjunction, Evaluated], ...]
NOTHING: Annotated = (((), Evaluated()),)
FormulaOf = Callable[[Iterable[Literal], str], Formula]


class Annotator:
    """Annotates each alternative of a formula with what it has evaluated, for one type."""

    def __init__(self, document: Document, formula: FormulaOf, kind: str) -> None:
        self._document = document
        self._formula = formula
        self._kind = kind
        self._open: set[int] = set()

    def of(self, literal: Literal) -> Annotated:
        """The alternatives of a subschema that holds."""
        schema = self._document.schema(literal.schema)
        if isinstance(schema, bool):
            return NOTHING if schema else ()
        pointer = self._document.pointer(literal.schema)
        if literal.schema in self._open:
            raise GrammarError(f"$ref: {pointer} is defined by itself", "$ref")
        self._open.add(literal.schema)
        unevaluated = KEYWORDS[self._kind]
        found = NOTHING
        for keyword in schema:
            if keyword != unevaluated:
                found = _both(found, self._keyword(keyword, schema, literal))
        self._open.remove(literal.schema)
        if unevaluated in schema:
            inner = self._below(schema[unevaluated], unevaluated, literal)
            everything = Evaluated(everything=True)
            found = tuple(
                ((*atoms, *seen.rest(self._document, self._kind, inner)), everything)
                for atoms, seen in found
            )
        return found

    def _keyword(self, keyword: str, schema: dict[str, Any], literal: Literal) -> Annotated:
        if keyword in _IN_PLACE:
            return _IN_PLACE[keyword](self, schema, literal)
        if keyword in _OWN[self._kind]:
            return self._own(keyword, schema, literal)
        if keyword == "contains" and self._kind == "array":
            inner = self._below(schema[keyword], keyword, literal)
            formula = OF_ARRAYS[keyword](self._document, schema, literal)
            return tuple((atoms, Evaluated(contained=frozenset((inner,)))) for atoms in formula)
        if keyword in ("then", "else") or keyword.startswith("$"):  # with `if`; no assertions
            return NOTHING
        return self._plain([self._document.made({keyword: schema[keyword]}, literal)])

    def _own(self, keyword: str, schema: dict[str, Any], literal: Literal) -> Annotated:
        """The alternatives of the keywords that evaluate properties or items."""
        if keyword != next(each for each in schema if each in _OWN[self._kind]):
            return NOTHING  # they were met as one
        table = OF_ARRAYS if self._kind == "array" else OF_OBJECTS
        formula = table[keyword](self._document, schema, literal)
        legacy = isinstance(schema.get("items"), list)
        everything = {"additionalProperties", "additionalItems" if legacy else "items"}
        seen = Evaluated(everything=bool(everything & schema.keys() & _OWN[self._kind]))
        for atom in (atom for atoms in formula for atom in atoms):
            seen |= _seen_by(atom)
        return tuple((atoms, seen) for atoms in formula)

    def _plain(self, literals: Iterable[Literal]) -> Annotated:
        return tuple((atoms, Evaluated()) for atoms in self._formula(literals, self._kind))

    def _ref(self, schema: dict[str, Any], literal: Literal) -> Annotated:
        return self.of(self._document.resolve(literal.schema, schema["$ref"], "$ref"))

    def _dynamic_ref(self, schema: dict[str, Any], literal: Literal) -> Annotated:
        return self.of(self._document.resolve_dynamic(literal.schema, schema["$dynamicRef"]))

    def _all_of(self, schema: dict[str, Any], literal: Literal) -> Annotated:
        found = NOTHING
        for branch in self._each(schema, "allOf", literal):
            found = _both(found, self.of(branch))
        return found

    def _any_of(self, schema: dict[str, Any], literal: Literal) -> Annotated:
        branches = self._each(schema, "anyOf", literal)
        none, some = NOTHING, ()  # type: tuple[Annotated, Annotated]
        for branch in branches:
            holds, fails = self.of(branch), self._plain([~branch])
            some = (*_both(some, holds), *_both(some, fails), *_both(none, holds))
            none = _both(none, fails)
        return some

    def _one_of(self, schema: dict[str, Any], literal: Literal) -> Annotated:
        branches = self._each(schema, "oneOf", literal)
        found: Annotated = ()
        for index, branch in enumerate(branches):
            others = [~other for other in (*branches[:index], *branches[index + 1 :])]
            found += _both(self.of(branch), self._plain(others))
        return found

    def _not(self, schema: dict[str, Any], literal: Literal) -> Annotated:
        return self._plain([~self._below(schema["not"], "not", literal)])

    def _if(self, schema: dict[str, Any], literal: Literal) -> Annotated:
        condition = self._below(schema["if"], "if", literal)
        then = self._below(schema.get("then", True), "then", literal)
        other = self._below(schema.get("else", True), "else", literal)
        held = _both(self.of(condition), self.of(then))
        return (*held, *_both(self._plain([~condition]), self.of(other)))

    def _dependent_schemas(self, schema: dict[str, Any], literal: Literal) -> Annotated:
        found = NOTHING
        pointer = self._document.pointer(literal.schema)
        for name, inner in map_of(schema, "dependentSchemas", pointer).items():
            branch = self._below(inner, f"dependentSchemas/{escaped(name)}", literal)
            absent: Annotated = (((Absent(name),), Evaluated()),)
            present: Annotated = (((Present(name),), Evaluated()),)
            found = _both(found, (*absent, *_both(present, self.of(branch))))
        return found if self._kind == "object" else NOTHING

    def _each(self, schema: dict[str, Any], keyword: str, literal: Literal) -> list[Literal]:
        branches = list_of(schema, keyword, self._document.pointer(literal.schema))
        return [self._below(b, f"{keyword}/{index}", literal) for index, b in enumerate(branches)]

    def _below(self, schema: Any, path: str, parent: Literal) -> Literal:
        pointer = self._document.pointer(parent.schema)
        return self._document.literal(schema, f"{pointer}/{path}", parent.schema)


def _seen_by(atom: Atom) -> Evaluated:
    if isinstance(atom, Properties):
        names = frozenset(name for name, _ in atom.named)
        return Evaluated(names, frozenset(pattern for pattern, _ in atom.patterns))
    return Evaluated(items=atom.index + 1) if isinstance(atom, ItemAt) else Evaluated()


def _both(one: Annotated, other: Annotated) -> Annotated:
    if len(one) * len(other) > MAX_ALTERNATIVES:
        raise GrammarError(
            f"unevaluated keywords expand to more than {MAX_ALTERNATIVES} alternatives",
            "unevaluatedProperties",
        )
    return tuple(
        (tuple(dict.fromkeys((*a, *b))), seen | more) for a, seen in one for b, more in other
    )


_OWN = {
    "array": frozenset(("items", "prefixItems", "additionalItems")),
    "object": frozenset(("properties", "patternProperties", "additionalProperties")),
}
_IN_PLACE: dict[str, Callable[[Annotator, dict[str, Any], Literal], Annotated]] = {
    "$ref": Annotator._ref,
    "$dynamicRef": Annotator._dynamic_ref,
    "allOf": Annotator._all_of,
    "anyOf": Annotator._any_of,
    "dependentSchemas": Annotator._dependent_schemas,
    "if": Annotator._if,
    "not": Annotator._not,
    "oneOf": Annotator._one_of,
}
