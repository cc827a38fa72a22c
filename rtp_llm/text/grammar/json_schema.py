# SPDX-License-Identifier: Apache-2.0
"""JSON schemas and JSON objects as grammars."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from rtp_llm.request.constraints import Grammar
from rtp_llm.text.grammar.pattern import whole
from rtp_llm.text.grammar.schema.compile import compile_text
from rtp_llm.text.grammar.schema.document import schema_text

# Small models write whitespace for ever where they may: one space, or a line with its indent.
WHITESPACE = r" |\n[ \t]{0,32}"
_REMEMBERED, _REMEMBERED_BYTES = 128, 16 * 1024


def json_schema_grammar(
    schema: dict[str, Any] | bool,
    *,
    strict: bool = True,
    whitespace_pattern: str | None = None,
    any_whitespace: bool = True,
) -> Grammar:
    """JSON that the schema (Draft 2020-12) holds for.

    `strict`: refuse what cannot be enforced, else leave it out. `whitespace_pattern`: a regular
    expression for the whitespace between two JSON tokens; without `any_whitespace` there is none.
    """
    text = inline_json(
        schema, strict=strict, whitespace_pattern=whitespace_pattern, any_whitespace=any_whitespace
    )
    return Grammar(text=f"start: {text}\n")


def json_object_grammar() -> Grammar:
    """Return the grammar of any JSON object: response_format "json_object"."""
    return json_schema_grammar({"type": "object"})


def inline_json(
    schema: dict[str, Any] | bool,
    *,
    strict: bool = True,
    whitespace_pattern: str | None = None,
    any_whitespace: bool = True,
) -> str:
    """The schema as a term of a Lark rule; for the parameters see json_schema_grammar."""
    space = WHITESPACE if whitespace_pattern is None else whole(whitespace_pattern)
    text = schema_text(schema)
    make = _remembered if len(text) <= _REMEMBERED_BYTES else _compiled
    body = json.loads(make(text, strict))
    body["x-guidance"] = {
        **body.get("x-guidance", {}),
        "whitespace_flexible": any_whitespace,
        "whitespace_pattern": space if any_whitespace else None,
    }
    return f"%json {json.dumps(body, ensure_ascii=False)}"


def _compiled(text: str, strict: bool) -> str:
    return json.dumps(compile_text(text, strict=strict))


_remembered = lru_cache(_REMEMBERED)(_compiled)  # agents send the same schemas with each turn
