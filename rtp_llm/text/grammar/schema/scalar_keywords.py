# SPDX-License-Identifier: Apache-2.0
"""Keywords of numbers and strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.pattern import search
from rtp_llm.text.grammar.schema.atoms import (
    FALSE,
    TRUE,
    Atom,
    Bound,
    Formula,
    Length,
    Matching,
    Multiple,
    Unsupported,
)
from rtp_llm.text.grammar.schema.document import Document, Literal
from rtp_llm.text.grammar.schema.formats import ANNOTATIONS, FORMATS
from rtp_llm.text.grammar.schema.values import count_of, number_of, text_of

MAX_COUNT = 2**31
"""Characters, items or properties; no answer has as many, and the library counts up to there."""

OfKind = dict[str, Callable[[Document, dict[str, Any], Literal], Formula]]


def one(atom: Atom) -> Formula:
    """The formula of one atom."""
    return ((atom,),)


def unsupported(keyword: str, pointer: str, reason: str) -> Formula:
    """The formula of what no grammar can say."""
    return one(Unsupported(keyword, f"{keyword} at {pointer} {reason}"))


TOO_MANY = f"asks for {MAX_COUNT} or more"


def length(keyword: str) -> Callable[[Document, dict[str, Any], Literal], Formula]:
    """The formula of a minimum or maximum count: minLength, maxItems, ..."""

    def made(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
        pointer = document.pointer(literal.schema)
        count = count_of(schema, keyword, pointer)
        if keyword.startswith("min") == literal.positive:
            count += 0 if literal.positive else 1
            if count >= MAX_COUNT:
                return unsupported(keyword, pointer, TOO_MANY)
            return one(Length(minimum=count)) if count else TRUE
        if count >= MAX_COUNT:
            return TRUE
        count -= 0 if literal.positive else 1
        return FALSE if count < 0 else one(Length(maximum=count))

    return made


def _bound(keyword: str) -> Callable[[Document, dict[str, Any], Literal], Formula]:
    """The formula of minimum and maximum, which a boolean in Draft 4 may make exclusive."""

    def made(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
        pointer = document.pointer(literal.schema)
        flag = schema.get(f"exclusive{keyword[0].upper()}{keyword[1:]}") is True
        value = number_of(schema, keyword, pointer)
        return one(_bounded(keyword == "minimum", value, flag, literal.positive))

    return made


def _exclusive(keyword: str) -> Callable[[Document, dict[str, Any], Literal], Formula]:
    def made(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
        if isinstance(schema[keyword], bool):  # Draft 4: see _bound
            return TRUE if literal.positive else FALSE
        value = number_of(schema, keyword, document.pointer(literal.schema))
        return one(_bounded(keyword == "exclusiveMinimum", value, True, literal.positive))

    return made


def _bounded(lower: bool, value: Any, exclusive: bool, positive: bool) -> Bound:
    return Bound(lower == positive, value, exclusive == positive)


def _multiple(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
    pointer = document.pointer(literal.schema)
    factor = number_of(schema, "multipleOf", pointer)
    if factor <= 0:
        raise GrammarError(f"multipleOf at {pointer} is not above 0", "multipleOf")
    if not literal.positive:
        return unsupported("multipleOf", pointer, "cannot be negated")
    return one(Multiple(factor))


def _pattern(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
    pointer = document.pointer(literal.schema)
    text = text_of(schema, "pattern", pointer)
    try:
        found = search(text)
    except GrammarError as error:
        return unsupported("pattern", pointer, f"({text[:40]!r}): {error}")
    if not literal.positive:
        return unsupported("pattern", pointer, "cannot be negated")
    return one(Matching(found))


def _format(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
    pointer = document.pointer(literal.schema)
    name = text_of(schema, "format", pointer)
    if name in ANNOTATIONS:
        return TRUE if literal.positive else FALSE
    if name not in FORMATS:
        known = ", ".join(sorted(FORMATS))
        return unsupported("format", pointer, f"is {name!r}; known are {known}")
    if not literal.positive:
        return unsupported("format", pointer, "cannot be negated")
    return one(Matching(FORMATS[name]))


OF_NUMBERS: OfKind = {
    "minimum": _bound("minimum"),
    "maximum": _bound("maximum"),
    "exclusiveMinimum": _exclusive("exclusiveMinimum"),
    "exclusiveMaximum": _exclusive("exclusiveMaximum"),
    "multipleOf": _multiple,
}
OF_STRINGS: OfKind = {
    "minLength": length("minLength"),
    "maxLength": length("maxLength"),
    "pattern": _pattern,
    "format": _format,
}
