"""What a request's answer has to obey, under all names that clients know, as one grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from rtp_llm.constraints import Grammar
from rtp_llm.server.bounds import check_depth
from rtp_llm.server.errors import ApiError, bad_request
from rtp_llm.server.openai.protocol import ConstraintFields, ResponseFormat, StructuredOutputs
from rtp_llm.server.prepare.served_model import NotInline, ServedModel
from rtp_llm.text import grammar as grammars
from rtp_llm.text.grammar import GrammarError

Made = Callable[[], Grammar]


def constraint_of(request: ConstraintFields) -> Grammar | None:
    """The grammar, None without one. Raises ApiError 400: two of them, or one that cannot be."""
    found = [*_found(request)]
    if not found:
        return None
    if len(found) > 1:
        names = " and ".join(name for name, _ in found[:2])
        raise bad_request(
            f"{names} both say what the answer must be; give one.", found[1][0], "invalid_value"
        )
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
        grammars.check_grammar(grammar, model.tokenizer)
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
    """The fields that are given, empty texts apart."""
    if request.response_format is not None and request.response_format.type != "text":
        yield "response_format", _bound(_response_format, request.response_format)
    outputs = request.structured_outputs
    if outputs is not None:
        yield from _structured("structured_outputs.", outputs)
    yield from _structured(
        "guided_",
        StructuredOutputs(
            json=request.guided_json,
            regex=request.guided_regex,
            choice=request.guided_choice,
            grammar=request.guided_grammar,
            whitespace_pattern=request.guided_whitespace_pattern,
        ),
    )
    plain = StructuredOutputs(
        json=request.json_schema, regex=request.regex, structural_tag=request.structural_tag
    )
    for name, make in _structured("", plain):
        yield "json_schema" if name == "json" else name, make
    for name in ("ebnf", "grammar"):
        if text := getattr(request, name):
            yield name, _bound(grammars.ebnf_grammar, text)


def _structured(prefix: str, asked: StructuredOutputs) -> Iterator[tuple[str, Made]]:
    if asked.json is not None and asked.json != "":
        yield f"{prefix}json", lambda: _json(asked)
    if asked.regex:
        yield f"{prefix}regex", _bound(grammars.regex_grammar, asked.regex)
    if asked.choice is not None:
        yield f"{prefix}choice", _bound(grammars.choice_grammar, asked.choice)
    if asked.grammar:
        yield f"{prefix}grammar", _bound(grammars.ebnf_grammar, asked.grammar)
    if asked.json_object:
        yield f"{prefix}json_object", lambda: _json(asked, {"type": "object"})
    if asked.structural_tag:
        yield f"{prefix}structural_tag", lambda: _structural_tag(asked.structural_tag)


def _bound(make: Callable[[Any], Grammar], value: Any) -> Made:
    return lambda: make(value)


def _response_format(asked: ResponseFormat) -> Grammar:
    if asked.type == "json_object":
        return grammars.json_object_grammar()
    if asked.type == "json_schema":
        schema = asked.json_schema
        if schema is None or schema.schema is None:
            raise GrammarError("json_schema.schema is required", "json_schema")
        return grammars.json_schema_grammar(schema.schema, strict=bool(schema.strict))
    tag = msgspec.to_builtins(asked)
    return _structural_tag({name: value for name, value in tag.items() if value is not None})


def _structural_tag(tag: Any) -> Grammar:
    content = _decoded(tag, "structural_tag")
    if not isinstance(content, dict):
        raise GrammarError("a structural tag is an object", "structural_tag")
    return grammars.structural_tag_grammar(content)


def _json(asked: StructuredOutputs, schema: Any = None) -> Grammar:
    content = _decoded(asked.json if schema is None else schema, "json")
    if not isinstance(content, dict | bool):
        raise GrammarError("a schema is an object, true or false", "json")
    if asked.disable_additional_properties:
        content = _closed(content)
    return grammars.json_schema_grammar(
        content,
        whitespace_pattern=asked.whitespace_pattern,
        any_whitespace=not asked.disable_any_whitespace,
    )


def _decoded(value: Any, name: str) -> Any:
    """What a text holds that is JSON; anything else is what it is."""
    if not isinstance(value, str):
        return value
    try:
        content = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"not valid JSON: {error}", name) from error
    check_depth(content)
    return content


def _closed(schema: Any) -> Any:
    """With no properties but those that are named, where a schema does not say."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed
