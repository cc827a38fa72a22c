# SPDX-License-Identifier: Apache-2.0
"""Finds what llguidance rejects after all, scalar by scalar, so that errors name a place."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import llguidance

from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.vocabulary import byte_vocabulary

# Fuel for one scalar; none that is of any use comes close.
_LIMITS = llguidance.LLParserLimits(max_lexer_states=20_000, verbose_errors=False)
_PLAIN = frozenset(("type", "enum"))
# What is left out first where a schema is not strict.
_ORDER = ("pattern", "multipleOf", "maxLength", "minLength", "minimum", "maximum")


def enforced(schema: dict[str, Any], pointer: str, *, strict: bool) -> dict[str, Any]:
    """`schema`, a scalar that stands at `pointer`; unless `strict`, without what is refused.

    Raises GrammarError with the keyword and its place.
    """
    if "allOf" in schema:
        return {**schema, "allOf": [enforced(e, pointer, strict=strict) for e in schema["allOf"]]}
    if _PLAIN.issuperset(schema):
        return schema
    reason = refusal(json.dumps(schema))
    if not reason:
        return schema
    candidates = _weaker(schema)
    keyword, found = next((k, weaker) for k, weaker in candidates if not _refused(weaker))
    if strict:
        raise GrammarError(f"{keyword} at {pointer}: {reason}", keyword)
    return found


def _weaker(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Schemas that lack a keyword, and the type alone."""
    present = [k for k in (*_ORDER, *schema) if k in schema and k not in _PLAIN]
    single = [
        (keyword, {name: value for name, value in schema.items() if name != keyword})
        for keyword in dict.fromkeys(present)
    ]
    return [*single, (present[0], {"type": schema["type"]})]


def _refused(schema: dict[str, Any]) -> bool:
    return not _PLAIN.issuperset(schema) and bool(refusal(json.dumps(schema)))


@lru_cache(4096)
def refusal(schema: str) -> str:
    """Why the library does not take a schema (JSON), in its words; empty where it does."""
    text = f"start: %json {schema}\n"
    matcher = llguidance.LLMatcher(byte_vocabulary(), text, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if not matcher.is_error():
        return ""
    first = matcher.get_error().splitlines()[0]
    return first.rpartition("failed to compile JSON schema: ")[2][:200]
