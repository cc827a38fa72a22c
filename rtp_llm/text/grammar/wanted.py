# SPDX-License-Identifier: Apache-2.0
"""The requested grammar, in vLLM's names, of a request or of SamplingParams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from rtp_llm.request.constraints import Grammar
from rtp_llm.text.grammar.check import check_grammar
from rtp_llm.text.grammar.ebnf import ebnf_grammar
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.json_schema import json_schema_grammar
from rtp_llm.text.grammar.lark import choice_grammar
from rtp_llm.text.grammar.pattern import regex_grammar
from rtp_llm.text.grammar.structural_tag import structural_tag_grammar
from rtp_llm.text.grammar.vocabulary import Vocabulary

MAX_DEPTH = 64
"""Of the lists and objects in JSON that comes as a text."""


class Wanted(Protocol):
    """One of the first six says what the answer is; the others how its JSON is written."""

    @property
    def json(self) -> str | dict[str, Any] | bool | None: ...
    @property
    def regex(self) -> str | None: ...
    @property
    def choice(self) -> Sequence[str] | None: ...
    @property
    def grammar(self) -> str | None: ...
    @property
    def json_object(self) -> bool | None: ...
    @property
    def structural_tag(self) -> str | dict[str, Any] | None: ...
    @property
    def disable_any_whitespace(self) -> bool | None: ...
    @property
    def disable_additional_properties(self) -> bool | None: ...
    @property
    def whitespace_pattern(self) -> str | None: ...


def wanted_grammars(
    wanted: Wanted, *, strict: bool = True
) -> Iterator[tuple[str, Callable[[], Grammar]]]:
    """The names that are given and what makes the grammar of each.

    That raises GrammarError, also for an empty text. `strict`: what cannot be enforced of a schema
    is refused, not left out.
    """
    if wanted.json is not None:
        yield "json", partial(_json, wanted, wanted.json, strict=strict)
    if wanted.regex is not None:
        yield "regex", partial(_of_text, regex_grammar, wanted.regex, "regex")
    if wanted.choice is not None:
        yield "choice", partial(choice_grammar, wanted.choice)
    if wanted.grammar is not None:
        yield "grammar", partial(_of_text, ebnf_grammar, wanted.grammar, "grammar")
    if wanted.json_object:
        yield "json_object", partial(_json, wanted, {"type": "object"})
    if wanted.structural_tag is not None:
        yield "structural_tag", partial(tag_grammar, wanted.structural_tag)


def checked_grammar(wanted: Wanted, tokenizer: Vocabulary) -> Grammar:
    """The grammar of what is wanted, which compiles. Raises GrammarError."""
    name, make = next(wanted_grammars(wanted))
    try:
        grammar = make()
        check_grammar(grammar, tokenizer)
        return grammar
    except GrammarError as error:
        raise GrammarError(f"structured_outputs.{name}: {error}", error.keyword) from error


def _of_text(make: Callable[[str], Grammar], text: str, name: str) -> Grammar:
    if not text.strip():
        raise GrammarError(f"the {name} is empty; leave it out for a free answer", name)
    return make(text)


def tag_grammar(tag: str | dict[str, Any]) -> Grammar:
    """The grammar of a structural tag, given as an object or as text. Raises GrammarError."""
    content = _decoded(tag, "structural_tag")
    if not isinstance(content, dict):
        raise GrammarError("a structural tag is an object", "structural_tag")
    return structural_tag_grammar(content)


def _json(wanted: Wanted, schema: str | dict[str, Any] | bool, *, strict: bool = True) -> Grammar:
    content = _decoded(schema, "json")
    if not isinstance(content, dict | bool):
        raise GrammarError("a schema is an object, true or false", "json")
    if wanted.disable_additional_properties:
        content = _closed(content)
    return json_schema_grammar(
        content,
        strict=strict,
        whitespace_pattern=wanted.whitespace_pattern,
        any_whitespace=not wanted.disable_any_whitespace,
    )


def _decoded(value: Any, name: str) -> Any:
    """Decode JSON text; any other value is returned unchanged."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        raise GrammarError("the text is empty; leave it out for a free answer", name)
    try:
        content = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"not valid JSON: {error}", name) from error
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        lists = [each for each in level if isinstance(each, list)]
        lists += [list(each.values()) for each in level if isinstance(each, dict)]
        level = [each for inner in lists for each in inner]
        if not level:
            return content
    raise GrammarError(f"the JSON is nested more than {MAX_DEPTH} levels deep", name)


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
