# SPDX-License-Identifier: Apache-2.0
"""Keywords of arrays."""

from __future__ import annotations

from typing import Any

from rtp_llm.text.grammar.schema.atoms import (
    FALSE,
    TRUE,
    Atom,
    Counted,
    Formula,
    ItemAt,
    ItemsFrom,
    Length,
    Unique,
)
from rtp_llm.text.grammar.schema.document import Document, Literal
from rtp_llm.text.grammar.schema.scalar_keywords import (
    MAX_COUNT,
    TOO_MANY,
    OfKind,
    length,
    one,
    unsupported,
)
from rtp_llm.text.grammar.schema.values import count_of, list_of


def _items(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
    """prefixItems and items; in older drafts, a list of `items` followed by additionalItems."""
    pointer = document.pointer(literal.schema)
    keyword, rest = "prefixItems", "items"
    if isinstance(schema.get("items"), list):
        keyword, rest = "items", "additionalItems"
    prefix = [
        document.literal(item, f"{pointer}/{keyword}/{index}", literal.schema)
        for index, item in enumerate(list_of(schema, keyword, pointer) if keyword in schema else ())
    ]
    atoms: list[Atom] = [ItemAt(index, item) for index, item in enumerate(prefix)]
    others = document.literal(schema.get(rest, True), f"{pointer}/{rest}", literal.schema)
    if others != Literal(0):
        atoms.append(ItemsFrom(len(prefix), others))
    if literal.positive:
        return (tuple(atoms),)
    return tuple(_broken(atom, rest) for atom in atoms)


def _broken(atom: Atom, keyword: str) -> tuple[Atom, ...]:
    if isinstance(atom, ItemAt):
        return (Length(minimum=atom.index + 1), ItemAt(atom.index, ~atom.literal))
    assert isinstance(atom, ItemsFrom)
    if atom.literal == Literal(1):
        return (Length(minimum=atom.index + 1),)
    return (Counted(atom.index, ~atom.literal, keyword),)


def _contains(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
    """contains with minContains and maxContains."""
    pointer = document.pointer(literal.schema)
    if "contains" not in schema:
        return TRUE if literal.positive else FALSE
    minimum = count_of(schema, "minContains", pointer) if "minContains" in schema else 1
    maximum = count_of(schema, "maxContains", pointer) if "maxContains" in schema else None
    if minimum >= MAX_COUNT:
        return unsupported("minContains", pointer, TOO_MANY) if literal.positive else TRUE
    if maximum is not None and maximum >= MAX_COUNT:
        maximum = None
    inner = document.literal(schema["contains"], f"{pointer}/contains", literal.schema)
    if literal.positive:
        found = counted(Counted(0, inner, "contains", minimum, maximum))
        return FALSE if found is None else (found,)
    fewer = counted(Counted(0, inner, "minContains", 0, minimum - 1)) if minimum else None
    more = None if maximum is None else counted(Counted(0, inner, "maxContains", maximum + 1))
    return tuple(each for each in (fewer, more) if each is not None)


def counted(atom: Counted) -> tuple[Atom, ...] | None:
    """What the atom comes to, without counting where that does; None if nothing satisfies it."""
    if atom.maximum is not None and atom.maximum < atom.minimum:
        return None
    if atom.literal == Literal(0):
        minimum = atom.index + atom.minimum if atom.minimum else 0
        return (Length(minimum, None if atom.maximum is None else atom.index + atom.maximum),)
    if atom.maximum == 0:
        return (ItemsFrom(atom.index, ~atom.literal),)
    return () if atom.minimum == 0 and atom.maximum is None else (atom,)


def _unique(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
    if schema["uniqueItems"] is not True:
        return TRUE if literal.positive else FALSE
    pointer = document.pointer(literal.schema)
    if not literal.positive:
        return unsupported("uniqueItems", pointer, "cannot be negated")
    return one(Unique(pointer))


def _unevaluated(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
    """Like `items` after prefixItems, provided that nothing else evaluates items."""
    pointer = document.pointer(literal.schema)
    inner = document.literal(schema["unevaluatedItems"], pointer, literal.schema)
    if inner == Literal(0) or "items" in schema:
        return TRUE if literal.positive else FALSE
    others = [keyword for keyword in schema if keyword in EVALUATORS or keyword == "contains"]
    if others:
        return unsupported("unevaluatedItems", pointer, f"with {others[0]} is not supported")
    start = len(list_of(schema, "prefixItems", pointer)) if "prefixItems" in schema else 0
    atom = ItemsFrom(start, inner)
    return one(atom) if literal.positive else (_broken(atom, "unevaluatedItems"),)


EVALUATORS = frozenset(
    (
        "$ref",
        "$dynamicRef",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "dependentSchemas",
        "dependencies",
    )
)
"""Keywords that apply subschemas to the value itself, which unevaluated* then looks through."""

OF_ARRAYS: OfKind = {
    "minItems": length("minItems"),
    "maxItems": length("maxItems"),
    "items": _items,
    "prefixItems": _items,
    "additionalItems": _items,
    "contains": _contains,
    "uniqueItems": _unique,
    "unevaluatedItems": _unevaluated,
}
