# SPDX-License-Identifier: Apache-2.0
"""Thinking comes before an answer: free, within its budget; the grammar starts after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers

from rtp_llm.engine.messages import RequestError
from rtp_llm.request.constraints import Thinking
from rtp_llm.testing.engine.grammars import (
    EOS,
    VOCABULARY,
    regex_case,
    save_spelling_model,
    text_of,
)
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt

DIGITS = regex_case("[0-9]{6}")
BEGIN, END = (50, 51), (60, 61, 62)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_spelling_model(tmp_path_factory.mktemp("model"))


def think(engine: TinyEngine, number: int, thinking: Thinking, **options: Any) -> int:
    params = {"temperature": 1.0, "seed": number, "max_tokens": 100, **options}
    return engine.add(random_prompt(5 + number, number, 300), thinking=thinking, **params)


def end_of(tokens: list[int]) -> int:
    """Where the answer begins."""
    return next(i for i in range(len(tokens)) if tuple(tokens[i : i + len(END)]) == END) + len(END)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_the_end_is_forced_and_the_grammar_begins_there(
    folder: Path, budget: int, overlap: bool
) -> None:
    engine = TinyEngine(folder, enable_overlap=overlap, max_running_requests=8)
    thinking = Thinking(end_ids=END, budget=budget)
    requests = [think(engine, i, thinking, grammar=DIGITS.grammar, n=2) for i in range(6)]
    engine.run()
    for outcome in (engine.outcomes[request, index] for request in requests for index in (0, 1)):
        start = end_of(outcome.tokens)
        assert start == budget + len(END)
        assert EOS not in outcome.tokens[:start]
        assert DIGITS.accepts(text_of(folder, outcome.tokens[start:]))
    engine.assert_all_free()


def test_a_model_that_ends_by_itself_is_not_forced(folder: Path) -> None:
    """The end is what it would have said in any case."""
    engine = TinyEngine(folder)
    options = {"ignore_eos": True, "max_tokens": 40}
    free = engine.tokens(random_prompt(9, 1, 300), **options)
    thinking = Thinking(end_ids=tuple(free[5:7]), budget=20)
    request = engine.add(random_prompt(9, 1, 300), thinking=thinking, **options)
    engine.run()
    assert engine.outcomes[request, 0].tokens == free


def test_a_budget_without_a_grammar(folder: Path) -> None:
    """Rows are free until the budget is used up, and after the end."""
    engine = TinyEngine(folder)
    options = {"ignore_eos": True, "max_tokens": 30}
    free = engine.tokens(random_prompt(9, 1, 300), **options)
    thinking = Thinking(end_ids=END, budget=12)
    assert not engine.engine._constraints._by_id
    request = engine.add(random_prompt(9, 1, 300), thinking=thinking, **options)
    engine.run()
    tokens = engine.outcomes[request, 0].tokens
    assert tokens[:12] == free[:12]
    assert tuple(tokens[12:15]) == END
    assert tokens[15:] == engine.tokens([*random_prompt(9, 1, 300), *tokens[:15]], **options)[:15]
    engine.add([5, 6], thinking=Thinking(end_ids=END))
    assert not engine.engine._constraints._by_id, "without a budget nothing is to be done"


@pytest.mark.parametrize("opens", [True, False])
def test_thinking_that_the_output_may_open(folder: Path, opens: bool) -> None:
    """Where it does not, all of the output is the answer."""
    engine = TinyEngine(folder)
    thinking = Thinking(begin_ids=BEGIN, end_ids=END, budget=4)
    bias = {BEGIN[0]: 100.0 if opens else -100.0}
    request = think(engine, 1, thinking, grammar=DIGITS.grammar, logit_bias=bias)
    engine.run()
    tokens = engine.outcomes[request, 0].tokens
    if opens:
        assert tuple(tokens[:2]) == BEGIN
        assert tuple(tokens[6:9]) == END
        tokens = tokens[9:]
    assert DIGITS.accepts(text_of(folder, tokens))


def test_an_opening_that_the_grammar_has_too(folder: Path) -> None:
    """The answer may begin with the first id of the opening and go on otherwise."""
    spelt = regex_case("<think|<then")
    engine = TinyEngine(folder)
    less, letter = (engine_id(folder, text) for text in ("<", "t"))
    thinking = Thinking(begin_ids=(less, letter, letter), end_ids=END, budget=2)
    answers = set()
    for number in range(8):
        request = think(engine, number, thinking, grammar=spelt.grammar)
        engine.run()
        tokens = engine.outcomes[request, 0].tokens
        if tuple(tokens[:3]) == thinking.begin_ids:
            assert tuple(tokens[5:8]) == END
            tokens = tokens[8:]
            answers.add("thought")
        assert spelt.accepts(text_of(folder, tokens))
        answers.add("answered")
    assert "answered" in answers


def engine_id(folder: Path, text: str) -> int:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    number: int = tokenizer.token_to_id(text)
    return number


def test_what_is_refused(folder: Path) -> None:
    engine = TinyEngine(folder)
    with pytest.raises(RequestError, match="it has no end_ids"):
        think(engine, 1, Thinking(end_ids=(), budget=3))
    with pytest.raises(RequestError, match=f"are not all below {VOCABULARY}"):
        think(engine, 1, Thinking(end_ids=(VOCABULARY,), budget=3))
