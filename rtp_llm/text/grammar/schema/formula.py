# SPDX-License-Identifier: Apache-2.0
"""The constraints of a schema on the values of one type, in disjunctive normal form.

A keyword constrains one JSON type and holds for all others, so the formula for strings, say, has
few atoms. Negation (`not`, `oneOf`, `if`) is pushed down to the atoms by De Morgan's laws; an atom
that no grammar can express negated becomes `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.schema import array_keywords, object_keywords, scalar_keywords
from rtp_llm.text.grammar.schema.annotations import KEYWORDS, Annotator
from rtp_llm.text.grammar.schema.array_keywords import EVALUATORS
from rtp_llm.text.grammar.schema.atoms import (
    FALSE,
    TRUE,
    Absent,
    Conjunction,
    Formula,
    Present,
    Unsupported,
    Values,
    Whole,
)
from rtp_llm.text.grammar.schema.document import Document, Literal, escaped
from rtp_llm.text.grammar.schema.values import canonical, kind_of, list_of, map_of

MAX_ALTERNATIVES = 512
MAX_CHAIN = 100
"""Of subschemas (by $ref, allOf, not, ...) that each say something of the same value."""
_OLD = "is of an older draft"
REFUSED = {"$recursiveRef": _OLD, "disallow": _OLD, "divisibleBy": _OLD, "extends": _OLD}
"""Keywords that no type is spared."""

Overlap = Callable[[tuple[Literal, ...], str], bool]

_TYPES = frozenset(("null", "boolean", "number", "integer", "string", "array", "object"))


class Formulas:
    """The formulas of a document's subschemas, each made once.

    `overlap(literals, kind)`: whether a value of the type may satisfy all of them.
    """

    def __init__(self, document: Document, overlap: Overlap) -> None:
        self._document = document
        self._overlap = overlap
        self._made: dict[tuple[Literal, str], Formula | None] = {}
        self._depth = 0

    def of(self, literal: Literal, kind: str) -> Formula:
        """The formula that `literal` is for values of `kind`."""
        key = (literal, kind)
        if key not in self._made:
            self._made[key] = None
            self._depth += 1
            try:
                self._check_depth(literal)
                self._made[key] = self._make(literal, kind)
            except BaseException:
                del self._made[key]
                raise
            finally:
                self._depth -= 1
        made = self._made[key]
        if made is None:
            pointer = self._document.pointer(literal.schema)
            raise GrammarError(f"$ref: {pointer} is defined by itself", "$ref")
        return made

    def _check_depth(self, literal: Literal) -> None:
        if self._depth > MAX_CHAIN:
            pointer = self._document.pointer(literal.schema)
            raise GrammarError(
                f"$ref: {pointer} is read {self._depth} subschemas deep, of which each says "
                f"something of the same value; at most {MAX_CHAIN} are followed",
                "$ref",
            )

    def all_of(self, literals: Iterable[Literal], kind: str) -> Formula:
        """The formula of their conjunction."""
        return conjunction(self.of(literal, kind) for literal in literals)

    def _make(self, literal: Literal, kind: str) -> Formula:
        self._document.check_time()
        schema = self._document.schema(literal.schema)
        if isinstance(schema, bool):
            return TRUE if schema == literal.positive else FALSE
        if literal.positive and _looks_around(schema, kind):
            found = Annotator(self._document, self.all_of, kind).of(literal)
            return bounded({atoms: None for atoms, _ in found})
        parts = [
            self._keyword(keyword, schema, literal, kind)
            for keyword in schema
            if keyword in _OF_ALL or keyword in REFUSED or keyword in _OF_KIND.get(kind, ())
        ]
        return conjunction(parts) if literal.positive else disjunction(parts)

    def _keyword(
        self, keyword: str, schema: dict[str, Any], literal: Literal, kind: str
    ) -> Formula:
        pointer = self._document.pointer(literal.schema)
        if keyword in REFUSED:
            return ((Unsupported(keyword, f"{keyword} at {pointer} {REFUSED[keyword]}"),),)
        if keyword in _OF_ALL:
            return _OF_ALL[keyword](self, schema, literal, kind)
        return _OF_KIND[kind][keyword](self._document, schema, literal)

    def _type(self, schema: dict[str, Any], literal: Literal, kind: str) -> Formula:
        pointer = self._document.pointer(literal.schema)
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for name in names:
            if not isinstance(name, str) or name not in _TYPES:
                raise GrammarError(f"type at {pointer}: {name!r} is not a JSON type", "type")
        listed = kind in names or (kind == "null" and schema.get("nullable") is True)
        if not listed and kind == "number" and "integer" in names:
            reason = f"type at {pointer}: a number cannot be required not to be an integer"
            return ((Whole() if literal.positive else Unsupported("type", reason),),)
        return TRUE if listed == literal.positive else FALSE

    def _values(self, schema: dict[str, Any], literal: Literal, kind: str) -> Formula:
        pointer = self._document.pointer(literal.schema)
        formulas = []
        for keyword in ("enum", "const"):
            if keyword in schema:
                const = keyword == "const"
                values = [schema[keyword]] if const else list_of(schema, keyword, pointer)
                formulas.append(_listed(values, kind, literal.positive))
        return conjunction(formulas) if literal.positive else disjunction(formulas)

    def _all_of(self, schema: dict[str, Any], literal: Literal, kind: str) -> Formula:
        return self._joined(self._each(schema, "allOf", literal), literal.positive, kind)

    def _any_of(self, schema: dict[str, Any], literal: Literal, kind: str) -> Formula:
        return self._joined(self._each(schema, "anyOf", literal), not literal.positive, kind)

    def _joined(self, literals: list[Literal], every: bool, kind: str) -> Formula:
        formulas = [self.of(literal, kind) for literal in literals]
        return conjunction(formulas) if every else disjunction(formulas)

    def _one_of(self, schema: dict[str, Any], literal: Literal, kind: str) -> Formula:
        branches = self._each(schema, "oneOf", Literal(literal.schema))
        if literal.positive:
            return disjunction(self._alone(branch, branches, kind) for branch in branches)
        none = conjunction(self.of(~branch, kind) for branch in branches)
        pairs = (
            self.all_of((one, other), kind)
            for index, one in enumerate(branches)
            for other in branches[:index]
            if self._overlap((one, other), kind)
        )
        return disjunction((none, *pairs))

    def _alone(self, branch: Literal, branches: list[Literal], kind: str) -> Formula:
        """`branch` and no other branch; those that exclude it anyway need no negation."""
        others = list(branches)
        others.remove(branch)
        shared = [other for other in others if self._overlap((branch, other), kind)]
        return self.all_of((branch, *(~other for other in shared)), kind)

    def _not(self, schema: dict[str, Any], literal: Literal, kind: str) -> Formula:
        inner = self._below(schema["not"], "not", literal.schema)
        return self.of(~inner if literal.positive else inner, kind)

    def _if(self, schema: dict[str, Any], literal: Literal, kind: str) -> Formula:
        condition = self._below(schema["if"], "if", literal.schema)
        branches = []
        for keyword, known in (("then", condition), ("else", ~condition)):
            branch = self._below(schema.get(keyword, True), keyword, literal.schema)
            branches.append(self.all_of((known, branch if literal.positive else ~branch), kind))
        return disjunction(branches)

    def _ref(self, schema: dict[str, Any], literal: Literal, kind: str) -> Formula:
        target = self._document.resolve(literal.schema, schema["$ref"], "$ref")
        return self.of(target if literal.positive else ~target, kind)

    def _dynamic_ref(self, schema: dict[str, Any], literal: Literal, kind: str) -> Formula:
        target = self._document.resolve_dynamic(literal.schema, schema["$dynamicRef"])
        return self.of(target if literal.positive else ~target, kind)

    def _dependencies(self, schema: dict[str, Any], literal: Literal, kind: str) -> Formula:
        """Of dependentRequired, dependentSchemas, and `dependencies`, which is either."""
        if kind != "object":
            return TRUE if literal.positive else FALSE
        pointer = self._document.pointer(literal.schema)
        formulas = []
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, required in map_of(schema, keyword, pointer).items():
                path = f"{keyword}/{escaped(name)}"
                formulas.append(self._dependency(name, required, path, literal))
        return conjunction(formulas) if literal.positive else disjunction(formulas)

    def _dependency(self, name: str, required: Any, path: str, literal: Literal) -> Formula:
        if isinstance(required, list) and all(isinstance(each, str) for each in required):
            needed: Formula = (tuple(Present(each) for each in required),)
            lacking: Formula = tuple((Present(name), Absent(each)) for each in required)
        else:
            inner = self._below(required, path, literal.schema)
            needed = self.of(inner, "object") if literal.positive else FALSE
            lacking = FALSE if literal.positive else self.of(~inner, "object")
        if literal.positive:
            return disjunction((((Absent(name),),), conjunction((((Present(name),),), needed))))
        return conjunction((((Present(name),),), lacking))

    def _each(self, schema: dict[str, Any], keyword: str, literal: Literal) -> list[Literal]:
        branches = list_of(schema, keyword, self._document.pointer(literal.schema))
        found = [
            self._below(branch, f"{keyword}/{index}", literal.schema)
            for index, branch in enumerate(branches)
        ]
        return found if literal.positive else [~branch for branch in found]

    def _below(self, schema: Any, path: str, parent: int) -> Literal:
        return self._document.literal(schema, f"{self._document.pointer(parent)}/{path}", parent)


def _looks_around(schema: dict[str, Any], kind: str) -> bool:
    """Whether the schema depends on what its in-place subschemas evaluate."""
    evaluators = EVALUATORS | {"contains"} if kind == "array" else EVALUATORS
    return KEYWORDS.get(kind) in schema and not evaluators.isdisjoint(schema)


def _listed(values: list[Any], kind: str, positive: bool) -> Formula:
    found = {canonical(value): value for value in values if kind_of(value) == kind}
    if not found:
        return FALSE if positive else TRUE
    return ((Values("\n".join(found), tuple(found.values()), positive),),)


def conjunction(formulas: Iterable[Formula]) -> Formula:
    """The formula that holds where all of `formulas` do."""
    made: Formula = TRUE
    for formula in formulas:
        if len(made) * len(formula) > 8 * MAX_ALTERNATIVES:
            raise _too_many()
        made = bounded({tuple(dict.fromkeys((*a, *b))): None for a in made for b in formula})
    return made


def disjunction(formulas: Iterable[Formula]) -> Formula:
    """The formula that holds where at least one of `formulas` does."""
    return bounded({each: None for formula in formulas for each in formula})


def bounded(alternatives: dict[Conjunction, None]) -> Formula:
    """Drop contradictory alternatives. Raises GrammarError if too many are left."""
    found = tuple(each for each in alternatives if not _contradicts(each))
    if len(found) > MAX_ALTERNATIVES:
        raise _too_many()
    return found


def _too_many() -> GrammarError:
    return GrammarError(
        f"anyOf, oneOf, not and if expand to more than {MAX_ALTERNATIVES} alternatives", "anyOf"
    )


def _contradicts(atoms: Conjunction) -> bool:
    present = {atom.name for atom in atoms if isinstance(atom, Present)}
    return any(isinstance(atom, Absent) and atom.name in present for atom in atoms)


_OF_ALL: dict[str, Callable[[Formulas, dict[str, Any], Literal, str], Formula]] = {
    "$ref": Formulas._ref,
    "$dynamicRef": Formulas._dynamic_ref,
    "allOf": Formulas._all_of,
    "anyOf": Formulas._any_of,
    "const": Formulas._values,
    "dependencies": Formulas._dependencies,
    "dependentRequired": Formulas._dependencies,
    "dependentSchemas": Formulas._dependencies,
    "enum": Formulas._values,
    "if": Formulas._if,
    "not": Formulas._not,
    "oneOf": Formulas._one_of,
    "type": Formulas._type,
}
_OF_KIND = {
    "number": scalar_keywords.OF_NUMBERS,
    "string": scalar_keywords.OF_STRINGS,
    "array": array_keywords.OF_ARRAYS,
    "object": object_keywords.OF_OBJECTS,
}
