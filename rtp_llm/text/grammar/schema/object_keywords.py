# SPDX-License-Identifier: Apache-2.0
"""Keywords of objects."""

from __future__ import annotations

from typing import Any

from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.pattern import search
from rtp_llm.text.grammar.schema.array_keywords import EVALUATORS
from rtp_llm.text.grammar.schema.atoms import (
    FALSE,
    TRUE,
    Absent,
    Atom,
    Formula,
    Names,
    Present,
    Properties,
    PropertyIs,
    Unsupported,
)
from rtp_llm.text.grammar.schema.document import Document, Literal, escaped
from rtp_llm.text.grammar.schema.scalar_keywords import OfKind, length, one, unsupported
from rtp_llm.text.grammar.schema.values import map_of, names_of


def _properties(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
    """properties, patternProperties and additionalProperties."""
    return _group(document, schema, literal, "additionalProperties")


def _unevaluated(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
    """Like additionalProperties, provided that nothing else evaluates properties."""
    if "additionalProperties" in schema or schema["unevaluatedProperties"] is True:
        return TRUE if literal.positive else FALSE
    others = [keyword for keyword in schema if keyword in EVALUATORS]
    if others:
        pointer = document.pointer(literal.schema)
        reason = f"with {others[0]} is not supported"
        return unsupported("unevaluatedProperties", pointer, reason)
    return _group(document, schema, literal, "unevaluatedProperties")


def _group(
    document: Document, schema: dict[str, Any], literal: Literal, rest_keyword: str
) -> Formula:
    pointer = document.pointer(literal.schema)
    named = _below(document, schema, "properties", literal)
    by_pattern = _below(document, schema, "patternProperties", literal)
    rest = document.literal(
        schema.get(rest_keyword, True), f"{pointer}/{rest_keyword}", literal.schema
    )
    patterns = []
    for pattern, inner in by_pattern.items():
        try:
            patterns.append((search(pattern), inner))
        except GrammarError as error:
            reason = f"({pattern[:40]!r}): {error}"
            return unsupported("patternProperties", pointer, reason)
    if literal.positive:
        return one(Properties(tuple(named.items()), tuple(patterns), rest))
    broken: list[tuple[Atom, ...]] = [
        (Present(name), PropertyIs(name, ~inner)) for name, inner in named.items()
    ]
    # Some free name whose value is wrong: only the names themselves can be listed.
    kept = [("patternProperties", inner) for inner in by_pattern.values()]
    for keyword, inner in [*kept, (rest_keyword, rest)]:
        if inner != Literal(0):
            reason = f"{keyword} at {pointer} cannot be negated"
            broken.append((Unsupported(keyword, reason),))
    return tuple(broken)


def _below(
    document: Document, schema: dict[str, Any], keyword: str, literal: Literal
) -> dict[str, Literal]:
    pointer = document.pointer(literal.schema)
    return {
        name: document.literal(inner, f"{pointer}/{keyword}/{escaped(name)}", literal.schema)
        for name, inner in map_of(schema, keyword, pointer).items()
    }


def _required(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
    if isinstance(schema["required"], bool):  # Draft 3, and some tools: of the property's owner
        pointer = document.pointer(literal.schema)
        raise GrammarError(f"required at {pointer} is not a list of strings", "required")
    names = names_of(schema, "required", document.pointer(literal.schema))
    if literal.positive:
        return (tuple(Present(name) for name in names),)
    return tuple((Absent(name),) for name in names)


def _names(document: Document, schema: dict[str, Any], literal: Literal) -> Formula:
    pointer = document.pointer(literal.schema)
    inner = document.literal(schema["propertyNames"], f"{pointer}/propertyNames", literal.schema)
    if inner == Literal(0):
        return TRUE if literal.positive else FALSE
    if not literal.positive:
        return unsupported("propertyNames", pointer, "cannot be negated")
    return one(Names(inner, pointer))


OF_OBJECTS: OfKind = {
    "minProperties": length("minProperties"),
    "maxProperties": length("maxProperties"),
    "properties": _properties,
    "patternProperties": _properties,
    "additionalProperties": _properties,
    "required": _required,
    "propertyNames": _names,
    "unevaluatedProperties": _unevaluated,
}
