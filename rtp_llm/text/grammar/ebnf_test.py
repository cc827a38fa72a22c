# SPDX-License-Identifier: Apache-2.0
"""GBNF: verdicts against a recogniser that knows no lexer, and refusals."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtp_llm.testing.text.matching import BYTES, accepts, matcher
from rtp_llm.text.grammar import GrammarError, check_grammar, ebnf_grammar
from rtp_llm.text.grammar.ebnf_parser import Characters, Choice, Reference, Repeat, Term, parse

JSON = r"""
root   ::= value   # as llama.cpp has it
value  ::= object | array | string | number | ("true" | "false" | "null")
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)?
ws     ::= | " " | "\n" [ \t]{0,20}
"""
CASES = [
    ('root ::= "yes" | "no"', ["yes", "no"], ["ye", "yesno", ""]),
    ('root ::= ("abc" | [a-z])* "!"', ["abx!", "abc!", "abcab!"], ["ab"]),
    ('root ::= [a-c] "1" | "a" "2"', ["a1", "a2", "c1"], ["c2"]),
    ('root ::= root "a" | "b"', ["b", "baaa"], ["a", ""]),
    ('root ::= "(" root ")" |', ["", "(())"], ["(()"]),
    ('root ::= "ab"{2,3} [^a]? .', ["ababx", "abababyz"], ["abx", "ababab\x00a!"]),
    ('root ::= x-y\nx-y ::= "\\u00e9\\t" "\\x41"+', ["é\tA", "é\tAAA"], ["e\tA"]),
    ('root ::=\n  "a"\n  | "b"\n\n\nother ::= "c"', ["a", "b"], ["c"]),
    ('root ::= [a-z]* "end"', ["end", "weekend", "endend"], ["en"]),
    ('root ::= e\ne ::= t | e [+-] t\nt ::= [0-9]+ | "(" e ")"', ["1+(2-33)"], ["1+", "(1"]),
    ("root ::= [\U0001f600-\U0001f64f]+ [^\\n]", ["😀😀x"], ["😀", "x"]),
    ("root ::= [*-/] [--]", ["+-"], ["0-"]),
    (JSON, ['{"a": [1, -2.5, "x\\n"], "b": null}', "true"], ['{"a" 1}', "[1,]", "tru"]),
]


@pytest.mark.parametrize(("text", "good", "bad"), CASES)
def test_verdicts(text: str, good: list[str], bad: list[str]) -> None:
    grammar = ebnf_grammar(text)
    check_grammar(grammar, BYTES)
    found = matcher(grammar)
    assert [each for each in good if not accepts(found, each)] == []
    assert [each for each in bad if accepts(found, each)] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('start ::= "a"', "no rule `root`"),
        ("root ::= a", "needs a, which is missing"),
        ('root ::= "a', "line 1: the grammar ends too early"),
        ('root ::= "a\n"', "a line ends in a literal"),
        ('root ::= "a"\nroot ::= "b"', "line 2: the rule root is there twice"),
        ('root ::= root "a"', "no finite text"),
        ('root ::= ("a"', r"a \( has no \)"),
        ('root ::= "a")', "is not expected here"),
        ("root ::= [z-a]", "does not ascend"),
        ("root ::= [\\d]", r"\\d is not supported"),
        ('root ::= "\\x41B"', "different things"),
        ('root ::= "a"{4,2}', "ascending"),
        ("root ::= Token(12)", r"macro Token\(...\)"),
        ('root[temperature=1] ::= "a"', "rule option"),
        ('root ::= "\\ud800"', "not a character"),
        ("root ::= " + "(" * 60 + '"a"' + ")" * 60, "deeper than 50"),
        ('root ::= <think> "a"', "'<think> ?\"?a?\"?' is not expected|is not expected"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        ebnf_grammar(text)


def recognises(rules: dict[str, Choice], text: str) -> bool:
    """By ends of all matches from each place; left recursion is cut by a fixpoint."""
    ends: dict[tuple[str, int], set[int]] = {}

    def of(term: Term, at: int) -> set[int]:
        if isinstance(term, Characters):
            inside = at < len(text) and any(a <= ord(text[at]) <= b for a, b in term.ranges)
            return {at + 1} if inside else set()
        if isinstance(term, Reference):
            return ends.setdefault((term.rule, at), set())
        if isinstance(term, Choice):
            found = set()
            for sequence in term.sequences:
                places = {at}
                for each in sequence:
                    places = {end for place in places for end in of(each, place)}
                found |= places
            return found
        assert isinstance(term, Repeat)
        found, places = ({at} if term.minimum == 0 else set()), {at}
        for count in range(1, min(term.maximum or 99, term.minimum + len(text) + 1) + 1):
            places = {end for place in places for end in of(term.term, place)}
            found |= places if count >= term.minimum else set()
        return found

    ends["root", 0] = set()
    grown = True
    while grown:
        grown = False
        for rule, at in list(ends):
            before = len(ends), len(ends[rule, at])
            ends[rule, at] |= of(rules[rule], at)
            grown |= before != (len(ends), len(ends[rule, at]))
    return len(text) in ends["root", 0]


@cache
def grammars() -> st.SearchStrategy[str]:
    name = st.sampled_from(["root", "x", "y"])
    leaf = st.one_of(
        st.sampled_from(['"a"', '"ab"', '"b"', "[ab]", "[^a]", "[a-c]", '""', "."]), name
    )

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(" ".join),
            st.lists(inner, min_size=2, max_size=3).map(" | ".join).map("({})".format),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"])).map(
                lambda pair: f"({pair[0]}){pair[1]}"
            ),
        )

    body = st.recursive(leaf, extend, max_leaves=6)
    return st.tuples(body, body, body).map(lambda b: f"root ::= {b[0]}\nx ::= {b[1]}\ny ::= {b[2]}")


@settings(max_examples=150, deadline=None)
@given(grammars(), st.lists(st.text("abcd", max_size=4), min_size=4, max_size=4))
def test_agrees_with_a_recogniser(text: str, samples: list[str]) -> None:
    try:
        grammar = ebnf_grammar(text)
    except GrammarError as error:
        assert "no finite text" in str(error)
        return
    found, rules = matcher(grammar), parse(text)
    for sample in ["", "a", "ab", *samples]:
        assert accepts(found, sample) == recognises(rules, sample), sample


def links(count: int) -> str:
    """Rules that need each other."""
    lines = [f'r{i} ::= "a" r{i + 1}' for i in range(count)]
    return "\n".join(["root ::= r0", *lines, f'r{count} ::= "b"'])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (links(9000), "more than 400 deep"),
        (links(9000).replace("root ::=", "root ::= root |"), "more than 400 deep"),
        ('root ::= (("a"{1000} "b"){1000})', "come to 1000000"),
        ('root ::= x{1000}\nx ::= y{1000}\ny ::= "a"', "come to 1000000"),
    ],
    ids=["chain", "recursive chain", "repeats", "repeats by rules"],
)
def test_what_would_explode_is_refused(text: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        ebnf_grammar(text)


def test_long_chains_and_many_rules_are_taken() -> None:
    assert accepts(ebnf_grammar(links(300)), "a" * 300 + "b")
    names = [f"r{i}" for i in range(2000)]
    rules = "\n".join(f'{name} ::= "{name}"' for name in names)
    assert accepts(ebnf_grammar(f"root ::= {' | '.join(names)}\n{rules}"), "r1999")
