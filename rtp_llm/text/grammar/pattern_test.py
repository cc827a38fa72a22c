# SPDX-License-Identifier: Apache-2.0
"""Patterns: verdicts compared with Python's `re`, and refusals by name."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtp_llm.testing.text.matching import accepts, matcher
from rtp_llm.text.grammar import GrammarError, json_schema_grammar, regex_grammar
from rtp_llm.text.grammar.pattern import matches, none_of, search, whole


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"a|b+", ["a", "bbb"], ["ab", ""]),
        (r"^(?:\d{3}-)?\d+$", ["123-4", "5"], ["-4", "1-2"]),
        (r"[^\d\s]{2,3}?", ["ab", "é/"], ["a", "a1", "a b", "abcd"]),
        (r"\u00e9\x41\cJ\/", ["éA\n/"], ["eA\n/"]),
        (r"\uD83D\uDE00+", ["😀😀"], [""]),
        (r"(?<year>[0-9]{4})(?P<m>x)?", ["2024", "2024x"], ["24"]),
        (r"\p{Lu}\P{Lu}", ["Éx"], ["éx", "ÉX"]),
        (r"[]", [], ["", "a"]),
        (r"[^]", ["a", "\n"], ["", "ab"]),
        (r"{a}", ["{a}"], ["a"]),
    ],
)
def test_whole(pattern: str, good: list[str], bad: list[str]) -> None:
    found = matcher(regex_grammar(pattern)) if good else None
    assert [text for text in good if found is None or not accepts(found, text)] == []
    assert [text for text in bad if matches(whole(pattern), text)] == []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)", "look-ahead"),
        ("(?<!a)b", "negative look-behind"),
        (r"\bword", r"the word boundary \\b"),
        (r"(a)\1", r"the back-reference \\1"),
        ("(?i)a", "inline flags"),
        ("(?>a)", "atomic group"),
        ("a++", "possessive"),
        ("a^b", r"\^ in the middle"),
        ("(a", r"a \( has no \)"),
        ("a)", r"a \) without its \("),
        ("*a", "nothing to repeat"),
        ("[b-a]", "does not ascend"),
        ("a{5,2}", "not a range"),
        ("a{20000}", "more than 10000"),
        ("a{,3}", r"write \{0,n\}"),
        (r"\q", r"\\q is not supported"),
        (r"\ud800", "not a character"),
        ("(" * 60 + ")" * 60, "deeper than 50"),
        ("^*", "anchor cannot be repeated"),
        ("a\\", "ends too early"),
    ],
)
def test_refusals(pattern: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as refusal:
        regex_grammar(pattern)
    assert refusal.value.keyword == "pattern"


def test_none_of() -> None:
    others = none_of(["a", "ab", 'q"', ""])
    words = {"a", "ab", 'q"', ""}
    for text in ("", "a", "ab", "abc", "b", "aa", 'q"', "q", 'q"x', "é"):
        assert matches(others, text) == (text not in words), text


_LETTERS = ["a", "b", '"', r"\\", r"\n", r"\x01", "é", r"\/", r"\-", r"\]"]
_CLASSES = [*_LETTERS, r"\d", r"\w", r"\s", r"\S", r"\W", "a-z", r"\x00-\x1f", "!-~"]
_CLASS = st.builds(
    "[{}{}]".format,
    st.sampled_from(["", "^"]),
    st.lists(st.sampled_from(_CLASSES), min_size=1, max_size=4).map("".join),
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quantified = st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{1,2}"]))
    either = st.builds("(?:{}|{})".format, inner, inner)
    return st.one_of(quantified, either, st.builds("{}{}".format, inner, inner))


_PATTERN = st.builds(
    "{}(?:{}){}".format,
    st.sampled_from(["", "^"]),
    st.recursive(st.one_of(st.sampled_from([*_LETTERS, r"\d", "[^\\n]"]), _CLASS), _larger),
    st.sampled_from(["", "$"]),
)
_TEXTS = st.lists(st.text('ab"\\\n\t\x01é/-]7 _\x7f😀', max_size=4), min_size=8, max_size=8)


@settings(max_examples=200, deadline=None)
@given(_PATTERN, _TEXTS)
def test_strings_of_a_pattern(pattern: str, texts: list[str]) -> None:
    expected = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    found = None
    if any(expected.search(text) for text in texts):  # a pattern of nothing does not compile
        found = matcher(json_schema_grammar({"type": "string", "pattern": pattern}))
    for text in texts:
        good = expected.search(text) is not None
        written = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
        assert matches(search(pattern), text) == good, text
        assert found is None or accepts(found, written) == good, text
