# SPDX-License-Identifier: Apache-2.0
"""From nodes (subschemas that all hold for one value) to shapes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from rtp_llm.text.grammar.errors import GrammarError, UnplacedError
from rtp_llm.text.grammar.schema.arrays import arrays
from rtp_llm.text.grammar.schema.atoms import (
    KINDS,
    Bound,
    Conjunction,
    Counted,
    Length,
    Multiple,
    Names,
    Unique,
    Unsupported,
    Values,
)
from rtp_llm.text.grammar.schema.distinct import DistinctItems
from rtp_llm.text.grammar.schema.document import Document, Literal
from rtp_llm.text.grammar.schema.evaluate import Evaluator
from rtp_llm.text.grammar.schema.formula import Formulas
from rtp_llm.text.grammar.schema.objects import Objects
from rtp_llm.text.grammar.schema.scalars import numbers, plain, strings
from rtp_llm.text.grammar.schema.shapes import ArrayShape, Node, ObjectShape, Scalar, Shape, node
from rtp_llm.text.grammar.schema.values import canonical, decimal, kind_of

_LOOK_AHEAD = 4
# What is left out of a schema that is not strict, by the keyword that a refusal names.
_ATOMS_OF: dict[str, type | tuple[type, ...]] = {
    "contains": Counted,
    "enum": Values,
    "items": Counted,
    "maxContains": Counted,
    "maximum": Bound,
    "maxProperties": Length,
    "minContains": Counted,
    "minimum": Bound,
    "minProperties": Length,
    "multipleOf": Multiple,
    "propertyNames": Names,
    "unevaluatedItems": Counted,
    "uniqueItems": Unique,
}


class Expander:
    """Shapes of a document's nodes, each made once."""

    def __init__(self, document: Document) -> None:
        self._document, self._strict = document, document.strict
        self._formulas = Formulas(document, self._overlap)
        self._evaluator = Evaluator(self._formulas, strict=document.strict)
        self._objects = Objects(self._formulas, self._evaluator)
        self._distinct = DistinctItems(document, self.shapes, self._share_a_value)
        self._made: dict[tuple[Node, str], list[Shape]] = {}
        self._open: set[tuple[Node, str]] = set()
        self._tags_of: dict[Literal, dict[str, frozenset[str]]] = {}

    def shapes(self, node: Node) -> list[Shape]:
        """The alternatives of a node, over all types."""
        return [shape for kind in KINDS for shape in self._of_kind(node, kind)]

    def _of_kind(self, node: Node, kind: str) -> list[Shape]:
        key = (node, kind)
        if key not in self._made:
            if key in self._open:
                raise GrammarError(f"what {kind}s there are depends on itself", "uniqueItems")
            self._open.add(key)
            try:
                self._made[key] = self._make(node, kind)
            except UnplacedError as error:
                raise error.at(self._document.pointer(node[0].schema)) from error
            finally:
                self._open.remove(key)
        return self._made[key]

    def _make(self, node: Node, kind: str) -> list[Shape]:
        formula = self._formulas.all_of(node, kind)
        if () in formula:
            return [*self._conjunction((), kind)]
        found: list[Shape] = []
        listed: dict[str, Any] = {}
        for atoms in formula:
            lists = [atom for atom in atoms if isinstance(atom, Values) and atom.listed]
            if lists:
                rest = tuple(atom for atom in atoms if atom is not lists[0])
                for value in lists[0].values:
                    if self._evaluator.conjunction(rest, value):
                        listed[canonical(value)] = value
            else:
                found += self._conjunction(atoms, kind)
        if listed:
            found.append(Scalar({"enum": [_written(value) for value in listed.values()]}))
        return found

    def _conjunction(self, atoms: Conjunction, kind: str) -> list[Shape]:
        supported = _supported(atoms)
        shapes = self._of_atoms(supported, kind) if self._strict else self._weaker(supported, kind)
        if shapes and self._strict and len(supported) < len(atoms):
            lacking = next(atom for atom in atoms if isinstance(atom, Unsupported))
            raise GrammarError(lacking.reason, lacking.keyword)
        return shapes

    def _weaker(self, atoms: Conjunction, kind: str) -> list[Shape]:
        """Without the atoms that cannot be enforced."""
        while True:
            try:
                return self._of_atoms(atoms, kind)
            except GrammarError as error:
                left_out = _ATOMS_OF.get(error.keyword or "")
                if not left_out or not any(isinstance(atom, left_out) for atom in atoms):
                    raise
                atoms = tuple(atom for atom in atoms if not isinstance(atom, left_out))

    def _of_atoms(self, atoms: Conjunction, kind: str) -> list[Shape]:
        if kind == "null":
            return [Scalar({"type": "null"})] if not atoms else []
        if kind == "boolean":
            left_out = {value for a in atoms if isinstance(a, Values) for value in a.values}
            kept = [value for value in (True, False) if value not in left_out]
            if len(kept) == 2:
                return [Scalar({"type": "boolean"})]
            return [Scalar({"enum": kept})] if kept else []
        if kind == "number":
            return [*numbers(atoms)]
        if kind == "string":
            return [*strings(atoms)]
        if kind == "array":
            return [*arrays(atoms, self._distinct.of)]
        return [*self._objects.shapes(atoms)]

    def _share_a_value(self, one: Node, other: Node) -> bool:
        both = node([*one, *other])
        return any(self._overlap(both, kind) for kind in KINDS)

    def _overlap(self, literals: Node, kind: str, depth: int = _LOOK_AHEAD) -> bool:
        """Whether a value of `kind` may satisfy all; true where it is not known."""
        try:
            if kind == "object" and self._differ_by_tags(literals):
                return False
            shapes = self._of_kind(literals, kind)
        except GrammarError:
            return True
        return any(self._possible(shape, depth) for shape in shapes)

    def _differ_by_tags(self, literals: Node) -> bool:
        """Whether a required property has other values in one than in another, as `kind` often."""
        seen: dict[str, frozenset[str]] = {}
        for literal in literals:
            for name, values in self._tags(literal).items():
                values &= seen.get(name, values)
                if not values:
                    return True
                seen[name] = values
        return False

    def _tags(self, literal: Literal) -> dict[str, frozenset[str]]:
        """The listed values of required properties, where each shape of the objects lists them."""
        if literal not in self._tags_of:
            self._tags_of[literal] = {}  # also while it is computed: it may be within itself
            found = [self._tags_of_shape(s) for s in self._of_kind((literal,), "object")]
            self._tags_of[literal] = {
                name: frozenset().union(*(tags[name] for tags in found))
                for name in (found[0] if found else ())
                if all(name in tags for tags in found)
            }
        return self._tags_of[literal]

    def _tags_of_shape(self, shape: Shape) -> dict[str, frozenset[str]]:
        tags = {}
        if isinstance(shape, ObjectShape):
            for name in shape.required:
                values = [] if not shape.named[name] else self.shapes(shape.named[name])
                if values and all(isinstance(v, Scalar) and "enum" in v.schema for v in values):
                    listed = (
                        each for v in values if isinstance(v, Scalar) for each in v.schema["enum"]
                    )
                    tags[name] = frozenset(map(canonical, listed))
        return tags

    def _possible(self, shape: Shape, depth: int) -> bool:
        if depth == 0:
            return True
        needed: list[Node] = []
        if isinstance(shape, ObjectShape):
            needed = [shape.named[name] for name in shape.required]
        elif isinstance(shape, ArrayShape):
            needed = [*shape.prefix[: shape.minimum]]
            needed += [shape.items] if shape.minimum > len(shape.prefix) else []
        return all(any(self._overlap(node, kind, depth - 1) for kind in KINDS) for node in needed)


def _supported(atoms: Conjunction) -> Conjunction:
    return tuple(atom for atom in atoms if not isinstance(atom, Unsupported))


def _written(value: Any) -> Any:
    """A listed value as llguidance reads it exactly; GrammarError if it cannot."""
    kind = kind_of(value)
    if kind == "number":
        return plain(Fraction(decimal(value)), "enum")
    if kind == "string":
        _check_text(value)
    if kind == "array":
        return [_written(each) for each in value]
    if kind == "object":
        for name in value:
            _check_text(name)
        return {name: _written(each) for name, each in value.items()}
    return value


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError("enum: a lone surrogate is not valid text", "enum") from error
