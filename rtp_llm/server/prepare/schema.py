"""A JSON Schema of a request to the grammar of its answer."""

from __future__ import annotations

from typing import Any

from rtp_llm.constraints import Grammar
from rtp_llm.server.prepare.constraint import grammar_error
from rtp_llm.server.prepare.served_model import NotInline, ServedModel
from rtp_llm.text.grammar import GrammarError, json_schema_grammar


def schema_grammar(
    schema: dict[str, Any] | bool, strict: bool, place: str, model: ServedModel
) -> Grammar:
    """Raises ApiError 400 that names the keyword that cannot be enforced, in the field `place`.

    In the event loop it raises NotInline.
    """
    if model.inline:
        raise NotInline
    try:
        return json_schema_grammar(schema, strict=strict)
    except GrammarError as error:
        raise grammar_error(place, error) from error
