# SPDX-License-Identifier: Apache-2.0
"""Conjunctions of atoms of objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rtp_llm.text.grammar.errors import GrammarError, UnplacedError
from rtp_llm.text.grammar.pattern import matches
from rtp_llm.text.grammar.schema.atoms import (
    Absent,
    Conjunction,
    Length,
    Matching,
    Names,
    Present,
    Properties,
    PropertyIs,
    Values,
)
from rtp_llm.text.grammar.schema.document import Literal
from rtp_llm.text.grammar.schema.evaluate import Evaluator, literals_of
from rtp_llm.text.grammar.schema.formula import Formulas
from rtp_llm.text.grammar.schema.shapes import NEVER, Node, ObjectShape, node

MAX_SHAPES = 64


class Objects:
    """Turns conjunctions of atoms about objects into shapes that llguidance can express."""

    def __init__(self, formulas: Formulas, evaluator: Evaluator) -> None:
        self._formulas = formulas
        self._evaluator = evaluator

    def shapes(self, atoms: Conjunction) -> list[ObjectShape]:
        """The shapes: one for each choice of properties that minProperties and such count."""
        names = self._listed_names(atoms)
        groups = [atom for atom in atoms if isinstance(atom, Properties)]
        known = self._values(atoms, groups, dict.fromkeys((*_named(atoms), *(names or ()))))
        patterns = {
            pattern: node(_of_pattern(groups, pattern))
            for group in groups
            for pattern, _ in group.patterns
        }
        shape = ObjectShape(
            known,
            tuple(dict.fromkeys(atom.name for atom in atoms if isinstance(atom, Present))),
            patterns,
            node([group.rest for group in groups]),
            *_counts(atoms),
        )
        if names is not None:
            shape = replace(shape, patterns={}, rest=NEVER)
        elif any(isinstance(atom, Names) for atom in atoms):
            shape = self._with_names(shape, atoms)
        if any(shape.named[name] == NEVER for name in shape.required):
            return []
        return _counted(shape)

    def _values(
        self, atoms: Conjunction, groups: list[Properties], names: Iterable[str]
    ) -> dict[str, Node]:
        """The constraints on the value of each property."""
        named = [dict(group.named) for group in groups]
        absent = {atom.name for atom in atoms if isinstance(atom, Absent)}
        allowed = [atom.literal for atom in atoms if isinstance(atom, Names)]
        more: dict[str, list[Literal]] = {}
        for atom in atoms:
            if isinstance(atom, PropertyIs):
                more.setdefault(atom.name, []).append(atom.literal)
        values: dict[str, Node] = {}
        for name in names:
            found = [
                each
                for group, own in zip(groups, named, strict=True)
                for each in literals_of(group, own, name)
            ]
            barred = name in absent or not self._evaluator.holds(allowed, name)
            values[name] = NEVER if barred else node([*found, *more.get(name, ())])
        return values

    def _listed_names(self, atoms: Conjunction) -> list[str] | None:
        """The names that are left where propertyNames lists them, else None."""
        literals = [atom.literal for atom in atoms if isinstance(atom, Names)]
        if not literals:
            return None
        found: dict[str, None] = {}
        for alternative in self._formulas.all_of(literals, "string"):
            lists = [a for a in alternative if isinstance(a, Values) and a.listed]
            if not lists:
                return None
            found.update(dict.fromkeys(lists[0].values))
        return [name for name in found if self._evaluator.holds(literals, name)]

    def _with_names(self, shape: ObjectShape, atoms: Conjunction) -> ObjectShape:
        """Names by their pattern or length, as patternProperties."""
        if shape.rest == NEVER and not shape.patterns:
            return shape
        names = [atom for atom in atoms if isinstance(atom, Names)]
        formula = self._formulas.all_of([atom.literal for atom in names], "string")
        patterns = []
        for alternative in formula:
            pattern = _pattern_of(alternative)
            if pattern is None or shape.patterns:
                raise GrammarError(
                    f"propertyNames at {names[0].pointer} is supported with one pattern, a length "
                    "or a list, and without patternProperties",
                    "propertyNames",
                )
            patterns.append(pattern)
        if not patterns:
            return replace(shape, rest=NEVER)
        if "" in patterns:
            return shape
        pattern = f"(?:{'|'.join(patterns)})"
        if shape.rest and any(v != NEVER and matches(pattern, n) for n, v in shape.named.items()):
            raise GrammarError(  # the library applies both to a named property
                f"propertyNames at {names[0].pointer} is not supported with a schema for "
                "additionalProperties if it matches declared properties",
                "propertyNames",
            )
        return replace(shape, patterns={pattern: shape.rest}, rest=NEVER)


def _named(atoms: Conjunction) -> list[str]:
    names: dict[str, None] = {}
    for atom in atoms:
        if isinstance(atom, Properties):
            names.update(dict.fromkeys(name for name, _ in atom.named))
    for atom in atoms:
        if isinstance(atom, (Present, Absent, PropertyIs)):
            names[atom.name] = None
    return list(names)


def _of_pattern(groups: list[Properties], pattern: str) -> list[Literal]:
    """What is asked of names of this pattern; llguidance refuses patterns that overlap."""
    found: list[Literal] = []
    for group in groups:
        own = [literal for each, literal in group.patterns if each == pattern]
        found += own or [group.rest]
    return found


def _pattern_of(alternative: Conjunction) -> str | None:
    """The pattern that the atoms of a name come to; None if it takes more than one."""
    if not alternative:
        return ""
    if len(alternative) > 1:
        return None
    atom = alternative[0]
    if isinstance(atom, Matching):
        return atom.pattern
    if isinstance(atom, Length):
        return f"(?s:.{{{atom.minimum},{'' if atom.maximum is None else atom.maximum}}})"
    return None


def _counts(atoms: Conjunction) -> tuple[int, int | None]:
    minimum, maximum = 0, None
    for atom in atoms:
        if isinstance(atom, Length):
            minimum = max(minimum, atom.minimum)
            if atom.maximum is not None:
                maximum = atom.maximum if maximum is None else min(maximum, atom.maximum)
        elif isinstance(atom, Values):
            if any(value != {} for value in atom.values):
                raise GrammarError(
                    "not, enum: objects cannot be left out of what is allowed", "enum"
                )
            minimum = max(minimum, 1)
    return minimum, maximum


def _counted(shape: ObjectShape) -> list[ObjectShape]:
    """The shape without minProperties and maxProperties, as far as choosing properties can do."""
    done: list[ObjectShape] = []
    waiting = [shape]
    while waiting:
        shape = _settled(waiting.pop())
        optional = [
            name
            for name, value in shape.named.items()
            if value != NEVER and name not in shape.required
        ]
        if shape.maximum is not None and len(shape.required) > shape.maximum:
            continue
        if (not shape.minimum and shape.maximum is None) or not optional:
            done += _of_free_names(shape)
        else:
            name = optional[0]
            waiting.append(replace(shape, named={**shape.named, name: NEVER}))
            waiting.append(replace(shape, required=(*shape.required, name)))
        if len(done) + len(waiting) > MAX_SHAPES:
            raise GrammarError(
                "minProperties and maxProperties with so many optional properties expand to more "
                f"than {MAX_SHAPES} alternatives",
                "minProperties" if shape.minimum else "maxProperties",
            )
    return done


def _settled(shape: ObjectShape) -> ObjectShape:
    """Without the counts that hold anyway."""
    open_ = shape.rest != NEVER or any(value != NEVER for value in shape.patterns.values())
    possible = sum(value != NEVER for value in shape.named.values())
    if shape.minimum <= len(shape.required):
        shape = replace(shape, minimum=0)
    if shape.maximum is not None and not open_ and possible <= shape.maximum:
        shape = replace(shape, maximum=None)
    if shape.maximum is not None and shape.maximum == len(shape.required):
        named = {n: v if n in shape.required else NEVER for n, v in shape.named.items()}
        shape = replace(shape, named=named, patterns={}, rest=NEVER, maximum=None)
    return shape


def _of_free_names(shape: ObjectShape) -> list[ObjectShape]:
    missing = shape.minimum - len(shape.required)
    if shape.minimum and shape.rest == NEVER and all(v == NEVER for v in shape.patterns.values()):
        return []
    if shape.minimum and missing > 1:
        raise UnplacedError(
            "minProperties", f"{missing} properties without given names may be the same one twice"
        )
    return [shape]
