"""What a request's answer has to obey, under all names that clients know, as one grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from rtp_llm.constraints import Grammar
from rtp_llm.server.errors import ApiError, bad_request
from rtp_llm.server.openai.protocol import ConstraintFields, ResponseFormat, StructuredOutputs
from rtp_llm.server.prepare.served_model import NotInline, ServedModel
from rtp_llm.text.grammar import (
    GrammarError,
    check_grammar,
    ebnf_grammar,
    json_object_grammar,
    json_schema_grammar,
)
from rtp_llm.text.grammar.wanted import tag_grammar, wanted_grammars

Made = Callable[[], Grammar]


def constraint_of(request: ConstraintFields, model: ServedModel) -> Grammar | None:
    """The grammar, None without one. Raises ApiError 400: two of them, or one that cannot be.

    In the event loop it raises NotInline: a schema of a few lines may take long.
    """
    found = [*_found(request)]
    if not found:
        return None
    if len(found) > 1:
        names = " and ".join(name for name, _ in found[:2])
        raise bad_request(
            f"{names} both say what the answer must be; give one.", found[1][0], "invalid_value"
        )
    if model.inline:
        raise NotInline
    (name, make) = found[0]
    try:
        return make()
    except GrammarError as error:
        raise grammar_error(name, error) from error


def check_compiles(name: str, grammar: Grammar | None, model: ServedModel) -> None:
    """Raise ApiError 400 for a grammar of the field `name` that does not compile, or takes long.

    In the event loop it raises NotInline.
    """
    if grammar is None:
        return
    if model.inline:
        raise NotInline
    try:
        check_grammar(grammar, model.tokenizer)
    except GrammarError as error:
        raise grammar_error(name, error) from error


def constraint_name(request: ConstraintFields) -> str:
    """The field that says what the answer must be."""
    return next((name for name, _ in _found(request)), "grammar")


def grammar_error(name: str, error: GrammarError) -> ApiError:
    """400 that names the field and the word at fault."""
    said = str(error)
    if error.keyword and error.keyword not in said:
        said = f"{error.keyword}: {said}"
    return bad_request(f"{name}: {said.rstrip('.')}.", name, "invalid_grammar")


def _found(request: ConstraintFields) -> Iterator[tuple[str, Made]]:
    """The fields that are given.

    llama.cpp's are empty by default, so an empty text of them asks for nothing.
    """
    if request.response_format is not None and request.response_format.type != "text":
        yield "response_format", partial(_response_format, request.response_format)
    outputs = request.structured_outputs or StructuredOutputs()
    for name, make in wanted_grammars(outputs):
        yield f"structured_outputs.{name}", make
    for name, make in wanted_grammars(_guided(request)):
        yield f"guided_{name}", make
    for name, make in wanted_grammars(_plain(request)):
        yield "json_schema" if name == "json" else name, make
    if request.ebnf:
        yield "ebnf", partial(ebnf_grammar, request.ebnf)


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


def _response_format(asked: ResponseFormat) -> Grammar:
    if asked.type == "json_object":
        return json_object_grammar()
    if asked.type == "json_schema":
        schema = asked.json_schema
        if schema is None or schema.schema is None:
            raise GrammarError("json_schema.schema is required", "json_schema")
        return json_schema_grammar(schema.schema, strict=bool(schema.strict))
    tag = msgspec.to_builtins(asked)
    return tag_grammar({name: value for name, value in tag.items() if value is not None})
