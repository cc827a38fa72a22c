# SPDX-License-Identifier: Apache-2.0
"""Structural tags: free text with constrained pieces, as xgrammar and vLLM have them.

Regular pieces are joined into terminals, so that what follows a piece decides where it ends. Before
a piece that is not regular (JSON, recursive rules) a terminal must be prefix-free: none of its
texts may begin another, since llguidance only matches the longest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import llguidance

from rtp_llm.request.constraints import Grammar
from rtp_llm.text.grammar.ebnf import ebnf_rules
from rtp_llm.text.grammar.ebnf_parser import is_ebnf
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.json_schema import inline_json
from rtp_llm.text.grammar.lark import MAX_BYTES, literal
from rtp_llm.text.grammar.pattern import terminal, whole
from rtp_llm.text.grammar.structural_tag_fields import (
    count_of,
    flag_of,
    format_of,
    formats_of,
    strings_of,
    text_of,
)
from rtp_llm.text.grammar.vocabulary import byte_vocabulary

MAX_DEPTH = 30
_TEXT = "/(?s:.*)/"
_MORE = "/(?s:.+)/"
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)+"')
_LIMITS = llguidance.LLParserLimits(max_lexer_states=20_000, verbose_errors=False)


@dataclass(frozen=True)
class Part:
    """A Lark term; `regular`: it may be part of a terminal."""

    term: str
    regular: bool


Parts = tuple[Part, ...]
Ends = tuple[str, ...]
"""Texts that end a tag; one of them follows its content."""


def structural_tag_grammar(tag: dict[str, Any]) -> Grammar:
    """The grammar of {"format": ...} or of the older {"structures": ..., "triggers": ...}.

    Raises GrammarError for a tag that is malformed or cannot be enforced.
    """
    if not isinstance(tag, dict):
        raise GrammarError("structural_tag is not an object", "structural_tag")
    if len(json.dumps(tag)) > MAX_BYTES:
        raise GrammarError(f"structural_tag: at most {MAX_BYTES} bytes are taken", "structural_tag")
    if "structures" in tag:
        tag = {"format": _from_structures(tag)}
    writer = _Writer()
    parts = writer.format(format_of(tag, "format", "structural_tag"), None, 0)
    start = writer.rule_term(parts)
    return Grammar(text="\n".join((f"start: {start}", *writer.lines)) + "\n")


def _from_structures(tag: dict[str, Any]) -> dict[str, Any]:
    """Convert vLLM's old form to triggered_tags."""
    tags = [
        {
            "type": "tag",
            "begin": text_of(each, "begin", "structures"),
            "content": {"type": "json_schema", "json_schema": each.get("schema", {})},
            "end": text_of(each, "end", "structures"),
        }
        for each in formats_of(tag, "structures", "structural_tag")
    ]
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


class _Writer:
    """Writes formats as terms, and collects the rules that they need."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = 0

    def format(self, body: dict[str, Any], ends: Ends | None, depth: int) -> Parts:
        """The format's pieces; inside a tag, one of `ends` follows them."""
        kind = text_of(body, "type", "format")
        if depth > MAX_DEPTH:
            raise GrammarError(f"structural_tag: nested deeper than {MAX_DEPTH}", kind)
        written = _FORMATS.get(kind)
        if written is None:
            known = ", ".join(sorted(_FORMATS))
            raise GrammarError(f"structural_tag: {kind} is not supported; known are {known}", kind)
        return written(self, body, ends, depth + 1)

    def rule_term(self, parts: Parts, *, closed: bool = False) -> str:
        """The pieces as a term of a rule; `closed`: more may follow them."""
        terms: list[str] = []
        regular: list[str] = []
        for part in parts:
            if part.regular:
                regular.append(part.term)
            else:
                terms += self._terminal(regular, checked=True)
                terms.append(part.term)
                regular = []
        terms += self._terminal(regular, checked=closed)
        return " ".join(terms) or '""'

    def _terminal(self, terms: Sequence[str], *, checked: bool) -> list[str]:
        if not terms:
            return []
        body = " ".join(terms)
        name = self._name("T")
        if checked and not self._is_prefix_free(body):
            raise GrammarError(
                "structural_tag: what comes before a JSON schema, a recursive grammar or another "
                f"tag may end at several places: {body[:100]}",
                "structural_tag",
            )
        self.lines.append(f"{name}: {body}")
        return [name]

    def _is_prefix_free(self, body: str) -> bool:
        """Whether no text of the terminal is a prefix of another one."""
        if _LITERAL.fullmatch(body):
            return True
        terminals = [line for line in self.lines if line[0].isupper()] if "R" in body else []
        rules = ["start: BOTH", f"LONE: {body}", f"BOTH: LONE & (LONE {_MORE})", *terminals]
        text = "\n".join(rules) + "\n"
        matcher = llguidance.LLMatcher(byte_vocabulary(), text, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            if "empty" in matcher.get_error() or "nsatisf" in matcher.get_error():
                return True
            raise GrammarError(f"structural_tag: {matcher.get_error()[:200]}", "structural_tag")
        return not any(matcher.compute_bitmask()) or matcher.is_stopped()

    def _name(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"

    def _rule(self, alternatives: Sequence[str]) -> Part:
        name = self._name("r")
        self.lines.append(f"{name}: {' | '.join(alternatives)}")
        return Part(name, regular=False)

    def either(self, alternatives: Sequence[Parts]) -> Parts:
        """One of the alternatives."""
        if len(alternatives) == 1:
            return alternatives[0]
        if all(part.regular for parts in alternatives for part in parts):
            return (Part(_any(_joined(parts) for parts in alternatives), regular=True),)
        return (self._rule([self.rule_term(each, closed=True) for each in alternatives]),)

    def json_schema(self, body: dict[str, Any], ends: Ends | None, _: int) -> Parts:
        if body.get("style", "json") != "json":
            raise GrammarError(f"structural_tag: style {body['style']} is not supported", "style")
        if body.get("any_order"):
            raise GrammarError("structural_tag: any_order is not supported", "any_order")
        term = inline_json(body.get("json_schema", True))
        return (Part(term, regular=False), *_end(ends))

    def grammar(self, body: dict[str, Any], ends: Ends | None, _: int) -> Parts:
        text = text_of(body, "grammar", "grammar")
        if not is_ebnf(text):
            raise GrammarError("structural_tag: grammar is not EBNF (rules with ::=)", "grammar")
        rules = ebnf_rules(text, self._name("") + "_")
        self.lines += rules.lines
        return (Part(rules.term, rules.regular), *_end(ends))

    def sequence(self, body: dict[str, Any], ends: Ends | None, depth: int) -> Parts:
        elements = formats_of(body, "elements", "sequence")
        if not elements:
            return _end(ends)
        found: Parts = ()
        for element in elements[:-1]:
            found += self.format(element, None, depth)
        return found + self.format(elements[-1], ends, depth)

    def choice(self, body: dict[str, Any], ends: Ends | None, depth: int) -> Parts:
        elements = formats_of(body, "elements", "or")
        if not elements:
            raise GrammarError("structural_tag: or has no elements", "or")
        return self.either([self.format(element, ends, depth) for element in elements])

    def repeat(self, body: dict[str, Any], ends: Ends | None, depth: int) -> Parts:
        minimum, maximum = {"optional": (0, 1), "plus": (1, -1), "star": (0, -1)}.get(
            body["type"], (None, None)
        )
        if minimum is None or maximum is None:
            minimum, maximum = count_of(body, "min", 0), count_of(body, "max", -1)
        parts = self.format(format_of(body, "content", body["type"]), None, depth)
        times = f"{{{minimum},{'' if maximum < 0 else maximum}}}"
        if all(part.regular for part in parts):
            return (Part(f"({_joined(parts)}){times}", regular=True), *_end(ends))
        inner = self.rule_term(parts, closed=True)
        return (self._rule([f"({inner}){times}"]), *_end(ends))

    def tag(self, body: dict[str, Any], ends: Ends | None, depth: int) -> Parts:
        begin = _marker(body, "begin")
        return (*begin, *self.tag_body(body, depth), *_end(ends))

    def tag_body(self, body: dict[str, Any], depth: int) -> Parts:
        """Everything after the tag's begin, including its end."""
        content = format_of(body, "content", "tag")
        if isinstance(body.get("end"), dict):
            return (*self.format(content, None, depth), *_marker(body, "end"))
        return self.format(content, tuple(strings_of(body, "end", "tag")), depth)

    def separated(self, body: dict[str, Any], ends: Ends | None, depth: int) -> Parts:
        tags = [self.tag(tag, None, depth) for tag in formats_of(body, "tags", body["type"])]
        one = self._rule([self.rule_term(parts, closed=True) for parts in tags]).term
        separator = text_of(body, "separator", body["type"])
        more = f"({literal(separator) if separator else ''} {one})*"
        whole_ = one if flag_of(body, "stop_after_first") else f"{one} {more}"
        optional = "" if flag_of(body, "at_least_one") else "?"
        return (self._rule([f"({whole_}){optional}"]), *_end(ends))

    def triggered(self, body: dict[str, Any], ends: Ends | None, depth: int) -> Parts:
        triggers = strings_of(body, "triggers", "triggered_tags")
        tags = formats_of(body, "tags", "triggered_tags")
        barred = [*triggers, *strings_of(body, "excludes", "triggered_tags", default=())]
        stops = [*barred, *(end for end in ends or () if end)]
        by_trigger: dict[str, list[Parts]] = {}
        for tag in tags:
            begin = text_of(tag, "begin", "tag")
            mine = [trigger for trigger in triggers if begin.startswith(trigger)]
            if len(mine) != 1:
                raise GrammarError(
                    f"structural_tag: begin {begin!r} has {len(mine)} of the triggers, not one",
                    "triggers",
                )
            rest = begin[len(mine[0]) :]
            parts = (*_constant(rest), *self.tag_body(tag, depth))
            by_trigger.setdefault(mine[0], []).append(parts)
        bodies = {
            trigger: self._rule([self.rule_term(each, closed=True) for each in found]).term
            for trigger, found in by_trigger.items()
        }
        free = [
            f"{self._terminal([_first(trigger, stops)], checked=False)[0]} {rule}"
            for trigger, rule in bodies.items()
        ]
        first = [f"{literal(trigger)} {rule}" for trigger, rule in bodies.items()]
        closing = [end for end in ends or () if end]
        tail = _any(_first(end, stops) for end in closing) if closing else _without(stops)
        return (self._dispatch(body, free, first, tail, _any(map(literal, closing or ("",)))),)

    def _dispatch(
        self, body: dict[str, Any], free: list[str], first: list[str], tail: str, end: str
    ) -> Part:
        """Tags after free text, or immediately if one is required; then `tail`, or just `end`."""
        tail = self._terminal([tail], checked=False)[0]
        once = flag_of(body, "stop_after_first")
        if flag_of(body, "at_least_one"):
            again = end if once else f"({' | '.join(free)})* {tail}"
            return self._rule([f"({' | '.join(first)}) {again}"])
        if once:
            return self._rule([*(f"{each} {end}" for each in free), tail])
        return self._rule([f"({' | '.join(free)})* {tail}"])


def _constant(text: str) -> Parts:
    return (Part(literal(text), regular=True),) if text else ()


def _end(ends: Ends | None) -> Parts:
    if ends is None or ends == ("",):
        return ()
    return (Part(_any(literal(end) for end in ends), regular=True),)


def _marker(body: dict[str, Any], field: str) -> Parts:
    """The begin or end of a tag: a text, or a token."""
    if isinstance(body.get(field), dict):
        return (_token(body[field]),)
    return _constant(text_of(body, field, "tag"))


def _token(body: dict[str, Any]) -> Part:
    token = body.get("token")
    if body.get("type") != "token" or not isinstance(token, int) or isinstance(token, bool):
        raise GrammarError("structural_tag: a token is given by its id", "token")
    return Part(f"<[{token}]>", regular=False)


def _any(terms: Any) -> str:
    return f"({' | '.join(terms)})"


def _joined(parts: Parts) -> str:
    return " ".join(part.term for part in parts) or '""'


def _first(text: str, stops: Sequence[str]) -> str:
    """Anything up to the first of `stops`, which is `text`."""
    barred = _any(literal(stop) for stop in stops)
    return f"(({_TEXT} {literal(text)}) & ~({_TEXT} {barred} {_MORE}))"


def _without(stops: Sequence[str]) -> str:
    """Any text that has none of `stops`."""
    if not stops:
        return _TEXT
    return f"({_TEXT} & ~({_TEXT} {_any(literal(stop) for stop in stops)} {_TEXT}))"


def _any_text(_: _Writer, body: dict[str, Any], ends: Ends | None, __: int) -> Parts:
    barred = strings_of(body, "excludes", "any_text", default=())
    if ends is None or "" in ends:
        return (Part(_without(barred), regular=True),)
    stops = [*barred, *ends]
    return (Part(_any(_first(end, stops) for end in ends), regular=True),)


def _const_string(_: _Writer, body: dict[str, Any], ends: Ends | None, __: int) -> Parts:
    return (*_constant(text_of(body, "value", "const_string")), *_end(ends))


def _regex(_: _Writer, body: dict[str, Any], ends: Ends | None, __: int) -> Parts:
    pattern = whole(text_of(body, "pattern", "regex"))
    return (Part(terminal(pattern), regular=True), *_end(ends))


def _one_token(_: _Writer, body: dict[str, Any], ends: Ends | None, __: int) -> Parts:
    return (_token(body), *_end(ends))


_FORMATS: dict[str, Callable[[_Writer, dict[str, Any], Ends | None, int], Parts]] = {
    "any_text": _any_text,
    "const_string": _const_string,
    "grammar": _Writer.grammar,
    "json_schema": _Writer.json_schema,
    "optional": _Writer.repeat,
    "or": _Writer.choice,
    "plus": _Writer.repeat,
    "regex": _regex,
    "repeat": _Writer.repeat,
    "sequence": _Writer.sequence,
    "star": _Writer.repeat,
    "tag": _Writer.tag,
    "tags_with_separator": _Writer.separated,
    "token": _one_token,
    "triggered_tags": _Writer.triggered,
}
