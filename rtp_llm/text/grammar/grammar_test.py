# SPDX-License-Identifier: Apache-2.0
"""The functions that requests reach, compiled with a served tokenizer."""

from __future__ import annotations

from pathlib import Path
from time import sleep

import pytest

from rtp_llm.request.constraints import Grammar
from rtp_llm.testing.model_folders import STYLES, write_folder
from rtp_llm.testing.text.matching import BYTES, accepts
from rtp_llm.text.grammar import (
    GrammarError,
    check,
    check_grammar,
    choice_grammar,
    ebnf_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from rtp_llm.text.grammar.check import rehearse
from rtp_llm.text.tokenizer import Tokenizer

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
CASES = [
    (json_schema_grammar(POINT), '{"x": 3}', '{"x": "3"}'),
    (json_object_grammar(), '{"a": [1, {}]}', "[1]"),
    (regex_grammar(r"[a-z]+/\d"), "ab/7", "ab/"),
    (choice_grammar(["yes", 'no "way"', "é\n"]), "é\n", "e\n"),
    (lark_grammar('start: "a"+'), "aaa", "ab"),
    (ebnf_grammar('root ::= "a" b\nb ::= [0-9]+'), "a12", "a"),
    (ebnf_grammar('start: "a"+'), "aa", ""),
]


@pytest.mark.parametrize("style", ["byte_level", "sentencepiece"])
def test_compiles_with_a_served_tokenizer(tmp_path: Path, style: str) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, STYLES[style]()))
    for grammar, _, _ in CASES:
        check_grammar(grammar, tokenizer)
    for _ in range(2):  # the second verdict is a remembered one
        with pytest.raises(GrammarError, match="unknown name"):
            check_grammar(Grammar(text='start: missing "a"'), tokenizer)


def test_whitespace_is_bounded() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    free, none = json_schema_grammar(schema), json_schema_grammar(schema, any_whitespace=False)
    two = json_schema_grammar(schema, whitespace_pattern="[ ]{0,2}")
    assert accepts(free, "[1, 2]")
    assert accepts(free, "[\n  1,\n  2\n]")
    assert not accepts(free, "[1,  2]")
    assert accepts(none, "[1,2]")
    assert not accepts(none, "[1, 2]")
    assert accepts(two, "[1,  2]")
    assert not accepts(two, "[1,   2]")
    with pytest.raises(GrammarError, match="look-ahead"):
        json_schema_grammar(schema, whitespace_pattern="(?= )")


def test_pieces_of_words_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, STYLES["wordpiece"]()))
    with pytest.raises(GrammarError, match="not pieces of its text"):
        check_grammar(json_object_grammar(), tokenizer)


def test_refusals_of_the_library_name_the_keyword() -> None:
    overlapping = {"patternProperties": {"^a": {"type": "null"}, "b$": {"type": "string"}}}
    with pytest.raises(GrammarError, match=r"\ApatternProperty regexes") as refusal:
        check_grammar(json_schema_grammar(overlapping), BYTES)
    assert refusal.value.keyword == "patternProperties"


def test_late_compilation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> str:
        sleep(1)
        return ""

    monkeypatch.setattr(check, "DEADLINE_SECONDS", 0.05)
    monkeypatch.setattr(check, "_complaint", slow)
    with pytest.raises(GrammarError, match=r"longer than 0\.05 s"):
        check_grammar(Grammar(text='start: "late"'), BYTES)


def test_a_rehearsal_follows_a_grammar_to_its_end(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, STYLES["byte_level"]()))
    for grammar in (*(each for each, _, _ in CASES), regex_grammar("a*")):
        rehearse(grammar, tokenizer)
        rehearse(grammar, BYTES)
    with pytest.raises(GrammarError, match="unknown name"):
        rehearse(Grammar(text='start: missing "a"'), BYTES)


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES)
def test_verdicts(grammar: Grammar, good: str, bad: str) -> None:
    check_grammar(grammar, BYTES)
    assert accepts(grammar, good)
    assert not accepts(grammar, bad)
