# SPDX-License-Identifier: Apache-2.0
"""The constraint on a request's answer, under any of the fields that clients use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rtp_llm.server.turn.grammar_source import GrammarSource
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.openai_bodies import ConstraintFields, ResponseFormat, StructuredOutputs
from rtp_llm.text.grammar.wanted import wanted_grammars


def constraint_of(request: ConstraintFields) -> GrammarSource | None:
    """The source of the request's grammar, or None. Raises ApiError 400 for two constraints."""
    found = [*_found(request)]
    if len(found) > 1:
        names = " and ".join(each.name for each in found[:2])
        raise bad_request(
            f"{names} both say what the answer must be; give one.", found[1].name, "invalid_value"
        )
    if not found:
        return None
    _check_tag(found[0])
    return found[0]


def _check_tag(source: GrammarSource) -> None:
    """Raise ApiError 400 for a structural tag of neither form, also where no answer is wanted."""
    tag = source.outputs.structural_tag if source.outputs is not None else None
    if isinstance(tag, dict) and not ("format" in tag or {"structures", "triggers"} <= tag.keys()):
        text = f"{source.name}: format is required, or structures and triggers."
        raise bad_request(text, source.name, "invalid_grammar")


def _found(request: ConstraintFields) -> Iterator[GrammarSource]:
    """The constraint fields that are set.

    llama.cpp's fields are empty by default, so an empty string there means no constraint.
    """
    if request.response_format is not None and request.response_format.type != "text":
        yield _response_format(request.response_format)
    outputs = request.structured_outputs or StructuredOutputs()
    for name, _ in wanted_grammars(outputs):
        yield GrammarSource(name=f"structured_outputs.{name}", outputs=outputs)
    guided, plain = _guided(request), _plain(request)
    for name, _ in wanted_grammars(guided):
        yield GrammarSource(name=f"guided_{name}", outputs=guided)
    for name, _ in wanted_grammars(plain):
        yield GrammarSource(name="json_schema" if name == "json" else name, outputs=plain)
    if request.ebnf:
        yield GrammarSource(name="ebnf", outputs=StructuredOutputs(grammar=request.ebnf))


def _guided(request: ConstraintFields) -> StructuredOutputs:
    return StructuredOutputs(
        json=request.guided_json,
        regex=request.guided_regex,
        choice=request.guided_choice,
        grammar=request.guided_grammar,
        whitespace_pattern=request.guided_whitespace_pattern,
    )


def _plain(request: ConstraintFields) -> StructuredOutputs:
    return StructuredOutputs(
        json=None if request.json_schema == "" else request.json_schema,
        regex=request.regex or None,
        grammar=request.grammar or None,
        structural_tag=None if request.structural_tag == "" else request.structural_tag,
    )


def _response_format(requested: ResponseFormat) -> GrammarSource:
    name = "response_format"
    if requested.type == "json_object":
        return json_object(name)
    if requested.type == "json_schema":
        schema = requested.json_schema
        if schema is None or schema.schema is None:
            text = f"{name}: json_schema.schema is required."
            raise bad_request(text, name, "invalid_grammar")
        return json_schema(schema.schema, bool(schema.strict), name)
    tag = msgspec.to_builtins(requested)
    given = {key: value for key, value in tag.items() if value is not None}
    return GrammarSource(name=name, outputs=StructuredOutputs(structural_tag=given))


def json_schema(schema: dict[str, Any] | bool, strict: bool, name: str) -> GrammarSource:
    """The constraint of a JSON schema, given in the field `name`.

    `strict`: refuse what cannot be enforced instead of ignoring it.
    """
    return GrammarSource(name=name, outputs=StructuredOutputs(json=schema), strict=strict)


def json_object(name: str) -> GrammarSource:
    """The constraint to any JSON object, requested by the field `name`."""
    return GrammarSource(name=name, outputs=StructuredOutputs(json_object=True))
