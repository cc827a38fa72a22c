# SPDX-License-Identifier: Apache-2.0
"""Answers of a random model obey their grammars, whatever else runs alongside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.messages import RequestError
from rtp_llm.request.constraints import Grammar
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.grammars import (
    EOS,
    VOCABULARY,
    Case,
    SlowLibrary,
    cases,
    json_case,
    regex_case,
    save_spelling_model,
    text_of,
)
from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.text.grammar import check_grammar
from rtp_llm.text.tokenizer import Tokenizer

CASES = cases(40)
DIGITS = regex_case("[0-9]{12}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_spelling_model(tmp_path_factory.mktemp("model"))


def add(engine: TinyEngine, number: int, case: Case | None, **options: Any) -> int:
    """A request of its own; without a case a free one."""
    params = {"temperature": 1.0, "seed": number, "max_tokens": 200, **options}
    grammar = None if case is None else case.grammar
    return engine.add(
        random_prompt(4 + number % 30, number % 7, VOCABULARY - 40), grammar=grammar, **params
    )


def check(folder: Path, case: Case, outcome: Outcome) -> None:
    assert (outcome.finish, outcome.stop_token) == ("stop", EOS), outcome
    assert case.accepts(text_of(folder, outcome.tokens))


@pytest.mark.parametrize("overlap", [False, True])
def test_answers_alone(folder: Path, overlap: bool) -> None:
    engine = TinyEngine(folder, enable_overlap=overlap)
    for number, case in enumerate(CASES):
        request = add(engine, number, case, temperature=number % 2)
        engine.run()
        check(folder, case, engine.outcomes[request, 0])
    engine.assert_all_free()


@pytest.mark.parametrize("overlap", [False, True])
def test_answers_among_free_rows_which_do_not_change(folder: Path, overlap: bool) -> None:
    with each_token_alone():
        engine = TinyEngine(folder, enable_overlap=overlap, max_running_requests=64)
        free = TinyEngine(folder, max_running_requests=64)
        for number in range(96):
            case = CASES[number % len(CASES)] if number % 3 else None
            add(engine, number, case, logprobs=2)
            if case is None:
                add(free, number, None, logprobs=2)
            if number % 8 == 7:
                engine.step()
        engine.run()
        free.run()
    assert not engine.failures
    for outcome in (*engine.outcomes.values(), *free.outcomes.values()):
        outcome.cached = 0  # of prompts that others had
    for number in range(96):
        outcome = engine.outcomes[number + 1, 0]
        if number % 3:
            check(folder, CASES[number % len(CASES)], outcome)
            assert len(outcome.logprobs) == len(outcome.tokens)
        else:
            assert outcome == free.outcomes[number // 3 + 1, 0]
    engine.assert_all_free()


def test_steps_overlap_or_not_with_the_same_tokens(folder: Path) -> None:
    outcomes = []
    with each_token_alone():  # when a grammar is compiled depends on threads
        for overlap in (False, True):
            engine = TinyEngine(folder, enable_overlap=overlap, seed=4)
            for number in range(24):
                add(engine, number, CASES[number], n=1 + number % 3, logprobs=1)
                engine.step()
            engine.run()
            outcomes.append(engine.outcomes)
    for outcome in (*outcomes[0].values(), *outcomes[1].values()):
        outcome.cached = 0
    assert outcomes[0] == outcomes[1]
    of_three = [[outcomes[0][3 * i, index].tokens for index in range(3)] for i in range(1, 9)]
    assert any(tokens[0] != tokens[1] for tokens in of_three)


def test_preemption_loses_nothing(folder: Path) -> None:
    small = {"kv_cache_mem_mb": 1, "seq_size_per_block": 4, "max_seq_len": 128}
    long = json_case({"type": "array", "items": {"type": "integer"}, "minItems": 30})
    with each_token_alone():
        outcomes = []
        for more in (small, {}):
            engine = TinyEngine(folder, max_running_requests=16, enable_overlap=True, **more)
            for number in range(16):
                add(engine, number, long if number % 2 else None, max_tokens=60, n=2)
            engine.run()
            outcomes.append(engine.outcomes)
            if more:
                assert engine.engine.stats().preemptions > 0
    for outcome in (*outcomes[0].values(), *outcomes[1].values()):
        outcome.cached = 0  # of what is computed again
    assert outcomes[0] == outcomes[1]


def test_other_settings_work_with_a_grammar(folder: Path) -> None:
    engine = TinyEngine(folder)
    option_sets: list[dict[str, Any]] = [
        {"repetition_penalty": 1.5, "frequency_penalty": 0.5},
        {"logit_bias": {9: 5.0}, "top_k": 20, "top_p": 0.9},
        {"prompt_logprobs": 1, "min_p": 0.1},
        {"max_tokens": 5},
        {"min_tokens": 3},
    ]
    requests = [add(engine, i, DIGITS, **options) for i, options in enumerate(option_sets)]
    stopping = add(engine, 9, DIGITS, stop_token_ids=tuple(range(3, VOCABULARY)))
    engine.run()
    for request, options in zip(requests, option_sets, strict=True):
        outcome = engine.outcomes[request, 0]
        if "max_tokens" in options:
            assert (outcome.finish, len(outcome.tokens)) == ("length", 5)
        else:
            check(folder, DIGITS, outcome)
    assert len(engine.outcomes[stopping, 0].tokens) == 1


def test_what_contradicts_a_grammar_ends_in_an_error(folder: Path) -> None:
    """A grammar that is done before min_tokens, or of which every token is banned."""
    engine = TinyEngine(folder)
    late = add(engine, 1, regex_case("yes|no"), min_tokens=20)
    banned = add(engine, 2, DIGITS, allowed_token_ids=tuple(range(EOS + 1)))
    engine.run()
    for request in (late, banned):
        assert engine.outcomes[request, 0].error == "no_allowed_tokens"


# -- compilation -------------------------------------------------------------------------------


def test_a_wrong_grammar_fails_its_request_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, engine = SlowLibrary(monkeypatch), TinyEngine(folder)
    wrong = engine.add([5, 6], grammar='start: "a" (')
    right = add(engine, 3, DIGITS)
    slow.release = True
    engine.run()
    assert list(engine.failures) == [wrong]
    assert engine.failures[wrong].kind == "invalid"
    assert engine.failures[wrong].message.startswith("grammar: ")
    check(folder, DIGITS, engine.outcomes[right, 0])
    with pytest.raises(RequestError, match="grammar: "):  # it is known by now
        engine.add([5, 6], grammar='start: "a" (')
    with pytest.raises(RequestError, match="characters is longer than"):
        engine.add([5, 6], grammar="x" * 2_200_000)


def test_others_run_while_a_grammar_is_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, engine = SlowLibrary(monkeypatch), TinyEngine(folder)
    request = add(engine, 1, DIGITS, n=2)
    twin = add(engine, 2, DIGITS)
    aborted = add(engine, 3, DIGITS)
    free = add(engine, 4, None)
    while engine.outcomes[free, 0].finish is None:
        engine.step()
        assert engine.engine.stats().running + engine.engine.stats().waiting <= 1
    assert engine.engine.has_work
    engine.engine.abort([(aborted, 0), (request, 1)])
    assert engine.engine.timeout_ms is not None
    engine.step()
    assert not engine.engine.can_go_on
    slow.release = True
    engine.run()
    for each in (request, twin):
        check(folder, DIGITS, engine.outcomes[each, 0])
    assert not engine.outcomes[aborted, 0].tokens
    assert not engine.outcomes[request, 1].tokens
    engine.assert_all_free()


def test_compilation_has_a_deadline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, engine = SlowLibrary(monkeypatch), TinyEngine(folder)
    monkeypatch.setattr("rtp_llm.worker.grammar.compiler._DEADLINE", 0.05)
    request = add(engine, 1, DIGITS)
    engine.run()
    slow.release = True
    assert "takes longer than 0.05 s" in engine.failures[request].message
    monkeypatch.undo()
    again = add(engine, 2, DIGITS)  # not for ever
    engine.run()
    check(folder, DIGITS, engine.outcomes[again, 0])


def test_so_many_may_wait(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, engine = SlowLibrary(monkeypatch), TinyEngine(folder, max_queued_requests=2)
    add(engine, 1, DIGITS, n=2)
    with pytest.raises(RequestError, match="2 sequences are being compiled") as refused:
        add(engine, 2, DIGITS)
    assert refused.value.kind == "queue_full"
    slow.release = True
    engine.run()
    assert engine.engine._requests.uncompiled == 0


def test_a_grammar_that_breaks_down_fails_its_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As llguidance does whose limits are exceeded in the middle of an answer."""
    engine = TinyEngine(folder, enable_overlap=True)
    broken = add(engine, 1, DIGITS, n=2)
    while not engine.outcomes[broken, 1].tokens:
        engine.step()
    constraint, _ = engine.engine._constraints._by_id[broken << 7]
    assert constraint._matcher is not None
    assert not constraint._matcher.accept(200)
    whole = add(engine, 2, DIGITS)
    engine.run()
    assert list(engine.failures) == [broken]
    assert engine.outcomes[broken, 1].finish is None
    check(folder, DIGITS, engine.outcomes[whole, 0])
    engine.assert_all_free()


# -- refusals ----------------------------------------------------------------------------------


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    engine = TinyEngine(folder)
    with pytest.raises(RequestError, match="leave ignore_eos out"):
        add(engine, 1, DIGITS, ignore_eos=True)
    save_model(tmp_path, "llama")
    without = TinyEngine(tmp_path)
    with pytest.raises(RequestError, match=r"has no tokenizer\.json"):
        without.add([5], grammar=DIGITS.grammar)


def test_a_tokenizer_of_more_tokens_than_logits_is_refused(tmp_path: Path) -> None:
    engine = TinyEngine(save_spelling_model(tmp_path, vocab_size=200))
    with pytest.raises(RequestError, match="tokens and the model 200 logits"):
        engine.add([5], grammar=DIGITS.grammar)


def test_tokens_are_those_that_grammars_are_checked_for(tmp_path: Path) -> None:
    """Marks of calls are often added tokens that are not special: text of a grammar matches them,
    as where requests are checked."""
    engine = TinyEngine(save_spelling_model(tmp_path, "llama"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    (mark,) = tokenizer.encode("<think>", add_special_tokens=False)
    grammar = Grammar(text='start: "<think>" "x"')
    check_grammar(grammar, tokenizer)
    request = engine.add([5], grammar=grammar.text, logit_bias={mark: 100.0}, max_tokens=9)
    engine.run()
    assert engine.outcomes[request, 0].tokens[0] == mark
