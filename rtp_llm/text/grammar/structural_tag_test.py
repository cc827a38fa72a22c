# SPDX-License-Identifier: Apache-2.0
"""Structural tags: what they let through, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.testing.text.matching import BYTES, ByteVocabulary, accepts, matcher
from rtp_llm.text.grammar import GrammarError, check_grammar, structural_tag_grammar

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
JSON = {"type": "json_schema", "json_schema": POINT}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: dict[str, Any], end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def tags(**more: Any) -> dict[str, Any]:
    calls = [
        tag("<f=a>", JSON, "</f>"),
        tag("<f=b>", {"type": "regex", "pattern": "[0-9]+"}, "</f>"),
    ]
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": calls, **more}


CALL = '<f=a>{"x": 1}</f>'
CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (const("a\nb"), ["a\nb"], ["a", ""]),
    (JSON, ['{"x":1}'], ["{}"]),
    ({"type": "regex", "pattern": "a+b"}, ["aab"], ["a"]),
    ({"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'}, ["((x))"], ["((x)"]),
    ({"type": "any_text"}, ["", "any\n<thing>"], []),
    ({"type": "any_text", "excludes": ["<f"]}, ["", "<", "a<g"], ["a<f", "<f"]),
    (tag("<t>", {"type": "any_text"}, "</t>"), ["<t></t>", "<t>a<</t>"], ["<t>", "<t></t>b</t>"]),
    (tag("<t>", {"type": "any_text"}, ["1", "2"]), ["<t>a1", "<t>2"], ["<t>a", "<t>1a2"]),
    (tag("```", {"type": "any_text"}, "```"), ["```a```", "``````"], ["```a````"]),
    (tag("<t>", JSON, "</t>"), ['<t>{"x":2}</t>'], ['<t>{"x":2}', "<t></t>"]),
    (
        {"type": "sequence", "elements": [tag("<t>", {"type": "any_text"}, "</t>"), JSON]},
        ['<t>why</t>{"x":1}'],
        ['{"x":1}', "<t>why</t>"],
    ),
    (
        {"type": "sequence", "elements": [{"type": "regex", "pattern": "[a-z]*"}, const("end")]},
        ["end", "weekend"],
        ["week"],
    ),
    ({"type": "or", "elements": [const("a"), const("ab"), JSON]}, ["a", "ab", '{"x":1}'], ["b"]),
    ({"type": "optional", "content": const("a")}, ["", "a"], ["aa"]),
    ({"type": "plus", "content": const("ab")}, ["ab", "abab"], ["", "aba"]),
    ({"type": "repeat", "min": 1, "max": 2, "content": JSON}, ['{"x":1}', '{"x":1}{"x":2}'], [""]),
    (
        {"type": "tags_with_separator", "tags": [tag("<i>", JSON, "</i>")], "separator": ","},
        ["", '<i>{"x":1}</i>', '<i>{"x":1}</i>,<i>{"x":2}</i>'],
        ['<i>{"x":1}</i>,', '<i>{"x":1}</i><i>{"x":2}</i>'],
    ),
    (tags(), ["", "text", CALL, f"so {CALL}{CALL} then <f=b>12</f>."], ["<f=c>", "a<f=a>{}</f>"]),
    (tags(at_least_one=True), [CALL, f"{CALL} more {CALL}"], ["", "text", f"a{CALL}"]),
    (tags(stop_after_first=True), ["", "text", f"a{CALL}"], [f"{CALL}b", CALL * 2]),
    (tags(at_least_one=True, stop_after_first=True), [CALL], ["", f"{CALL}b", f"a{CALL}"]),
    (tags(excludes=["!"]), ["a", f"a{CALL}b"], ["a!", f"a!{CALL}", f"{CALL}!"]),
    (tag("<r>", tags(), "</r>"), [f"<r>a{CALL}b</r>", "<r></r>"], ["<r>a", "<r></r>b</r>"]),
    (
        tag("<r>", tags(at_least_one=True, stop_after_first=True), "</r>"),
        [f"<r>{CALL}</r>"],
        [f"<r>{CALL}", "<r></r>", f"<r>{CALL} </r>"],
    ),
]


@pytest.mark.parametrize(("body", "good", "bad"), CASES, ids=lambda value: str(value)[:50])
def test_verdicts(body: dict[str, Any], good: list[str], bad: list[str]) -> None:
    grammar = structural_tag_grammar({"type": "structural_tag", "format": body})
    check_grammar(grammar, BYTES)
    found = matcher(grammar)
    assert [text for text in good if not accepts(found, text)] == []
    assert [text for text in bad if accepts(found, text)] == []


def test_the_older_form() -> None:
    structures = [{"begin": "<f=a>", "schema": POINT, "end": "</f>"}]
    old = {"type": "structural_tag", "structures": structures, "triggers": ["<f="]}
    found = matcher(structural_tag_grammar(old))
    assert accepts(found, f"so {CALL}")
    assert not accepts(found, "so <f=a>{}</f>")


def test_tokens() -> None:
    token = {"type": "token", "token": 257}
    vocabulary = ByteVocabulary(("<|end|>", "<|call|>"))
    body = {"type": "tag", "begin": token, "content": JSON, "end": token}
    found = matcher(structural_tag_grammar({"format": body}), vocabulary)
    assert found.try_consume_tokens([257, *b'{"x":1}', 257]) == 9


@pytest.mark.parametrize(
    ("body", "keyword", "reason"),
    [
        ({"type": "dispatch", "rules": []}, "dispatch", "dispatch is not supported; known are any"),
        ({"type": "const_string"}, "value", "value of const_string must be a string"),
        (JSON | {"style": "qwen_xml"}, "style", "qwen_xml"),
        (JSON | {"any_order": True}, "any_order", "not supported"),
        ({"type": "json_schema", "json_schema": {"uniqueItems": True}}, "uniqueItems", "at #"),
        (tags(triggers=["<g"]), "triggers", "has 0 of the triggers"),
        (tags(triggers=["<f", "<f="]), "triggers", "has 2 of the triggers"),
        ({"type": "or", "elements": []}, "elements", "list of objects"),
        (
            {"type": "sequence", "elements": [{"type": "any_text"}, JSON]},
            "structural_tag",
            "may end at several places",
        ),
        ({"type": "token", "token": "<x>"}, "token", "by its id"),
        ({"type": "regex", "pattern": "(?=a)"}, "pattern", "look-ahead"),
    ],
)
def test_refusals(body: dict[str, Any], keyword: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as refusal:
        structural_tag_grammar({"format": body})
    assert refusal.value.keyword == keyword


def test_what_is_no_tag() -> None:
    wrong: list[Any] = [{}, {"format": 3}, {"structures": []}, []]
    for tag_ in wrong:
        with pytest.raises(GrammarError, match="structural_tag"):
            structural_tag_grammar(tag_)
