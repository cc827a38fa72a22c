# SPDX-License-Identifier: Apache-2.0
"""Beam searches whose requests change logits find what transformers finds with its processors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria

from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.request.constraints import Thinking
from rtp_llm.testing.engine.beam_reference import transformers_beams
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.grammars import EOS, VOCABULARY, SlowLibrary, json_case, regex_case
from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.grammar.library import GrammarLibrary, MaskTask

SIZES: dict[str, Any] = {
    "seq_size_per_block": 4,
    "max_seq_len": 80,
    "max_running_requests": 40,
    "max_batch_tokens_size": 64,
}
WIDTH, LENGTH = 4, 14
WORDS = regex_case("(red|green|blue)( (red|green|blue)){0,3}").grammar
NUMBERS = json_case({"type": "array", "items": {"type": "integer"}, "maxItems": 3}).grammar
FEW = tuple(range(7, 13))
SPELLING = byte_level()
BIASED = dict.fromkeys(range(60, 110), 4.0)  # letters
CASES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"presence_penalty": 1.5, "frequency_penalty": -0.7},
    {"logit_bias": {3: 4.0, 9: -2.5, EOS: 3.0}},
    {"no_repeat_ngram_size": 2, "allowed_token_ids": (*FEW, EOS)},
    {"bad_words_token_ids": ((8,), (9, 10)), "allowed_token_ids": (*FEW, EOS)},
    {"min_tokens": 6, "logit_bias": {EOS: 6.0}},
    {"grammar": WORDS},
    {"grammar": NUMBERS, "repetition_penalty": 1.2},
    {"stop": ("e", "ab", "1"), "min_tokens": 3, "logit_bias": BIASED},
]


class Stops(StoppingCriteria):  # type: ignore[misc]
    """Stop strings that are complete after the first `min_tokens`."""

    def __init__(self, prompt: int, case: dict[str, Any]) -> None:
        self.prompt, self.case = prompt, case

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        rows = input_ids[:, self.prompt :].tolist()
        return torch.tensor([self.stops(ids) for ids in rows])

    def stops(self, ids: list[int]) -> bool:
        if len(ids) <= self.case.get("min_tokens", 0):
            return False
        known = len(SPELLING.decode(ids[:-1]))
        text = SPELLING.decode(ids)
        ends = [text.rfind(stop) + len(stop) for stop in self.case["stop"] if stop in text]
        return any(end > known for end in ends)


class Changes(LogitsProcessor):  # type: ignore[misc]
    """What transformers has no argument for, or not in this form."""

    def __init__(self, prompt: int, case: dict[str, Any], library: GrammarLibrary | None) -> None:
        self.prompt, self.case, self.library = prompt, case, library
        grammar = case.get("grammar")
        self.matcher = library.compile(grammar) if library and grammar else None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        for row, ids in enumerate(input_ids[:, self.prompt :].tolist()):
            counts = torch.bincount(torch.tensor(ids, dtype=torch.long), minlength=VOCABULARY)
            scores[row] -= self.case.get("presence_penalty", 0.0) * (counts > 0)
            scores[row] -= self.case.get("frequency_penalty", 0.0) * counts
            for token, bias in self.case.get("logit_bias", {}).items():
                scores[row, token] += bias
            if allowed := self.case.get("allowed_token_ids"):
                others = torch.ones(VOCABULARY, dtype=torch.bool)
                others[list(allowed)] = False
                scores[row, others] = -torch.inf
            if self.matcher is not None and EOS not in ids:
                scores[row, ~self.mask(ids)] = -torch.inf
        return scores

    def mask(self, ids: list[int]) -> Any:
        assert self.matcher is not None and self.library is not None
        matcher = self.matcher.copy()
        if not all(matcher.accept(token) for token in ids):
            return torch.zeros(VOCABULARY, dtype=torch.bool)  # a beam that is none
        words = np.zeros((1, -(-VOCABULARY // 32)), np.int32)
        self.library.fill([MaskTask(matcher, 0)], words)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:VOCABULARY]
        return torch.from_numpy(bits.astype(np.bool_))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("model")
    reference = save_model(folder, "llama", vocab_size=VOCABULARY, eos_token_id=EOS)
    byte_level().save(str(folder / "tokenizer.json"))
    with each_token_alone():
        yield folder, reference


def expected(model: Any, prompt: list[int], case: dict[str, Any], library: Any) -> Any:
    """transformers' sequences that are possible, without the padding, and their scores."""
    known = {
        "repetition_penalty": case.get("repetition_penalty"),
        "no_repeat_ngram_size": case.get("no_repeat_ngram_size"),
        "bad_words_ids": [list(each) for each in case.get("bad_words_token_ids", ())] or None,
        "min_new_tokens": case.get("min_tokens"),
    }
    found = transformers_beams(
        model,
        prompt,
        WIDTH,
        LENGTH,
        eos_token_id=EOS,
        stopping_criteria=[Stops(len(prompt), case)] if "stop" in case else None,
        logits_processor=LogitsProcessorList([Changes(len(prompt), case, library)]),
        **{name: value for name, value in known.items() if value is not None},
    )
    rows = zip(found.sequences[:, len(prompt) :].tolist(), found.sequences_scores, strict=True)
    scored = [(row, float(score)) for row, score in rows if score > -1e8]
    answers = [_ended(row, case, len(prompt)) for row, _ in scored]
    return answers, [score for _, score in scored]


def _ended(row: list[int], case: dict[str, Any], prompt: int) -> list[int]:
    stops = Stops(prompt, {"stop": (), **case})
    ends = (n for n in range(1, len(row)) if row[n - 1] == EOS or stops.stops(row[:n]))
    return row[: next(ends, len(row))]


def prompt_of(number: int) -> list[int]:
    return random_prompt(4 + 7 * number % 30, number, VOCABULARY - 40)


def add_all(engine: TinyEngine) -> list[int]:
    """The searches, and other requests that arrive between steps."""
    requests = []
    for number, case in enumerate(CASES):
        requests.append(search(engine, prompt_of(number), **case))
        for seed in (number, -number):
            other = random_prompt(3 + number % 5, seed, VOCABULARY - 40)
            engine.add(other, max_tokens=50, temperature=0.7, seed=seed, ignore_eos=True)
        engine.step()
    return requests


def search(engine: TinyEngine, prompt: list[int], **given: Any) -> int:
    given = {"n": WIDTH, "max_tokens": LENGTH, **given}
    return engine.add(prompt, inputs={"beam_search": BeamSearch()}, **given)


def answers(engine: TinyEngine, request: int) -> list[Outcome]:
    """Those that there are."""
    found = [outcome for (each, _), outcome in sorted(engine.outcomes.items()) if each == request]
    return [each for each in found if each.error != "too_few_sequences"]


def test_as_transformers(model: tuple[Path, Any]) -> None:
    folder, reference = model
    engine = TinyEngine(folder, **SIZES)
    requests = add_all(engine)
    engine.run()
    engine.assert_all_free()
    library = engine.engine._constraints.library
    for number, (request, case) in enumerate(zip(requests, CASES, strict=True)):
        wanted, scores = expected(reference, prompt_of(number), case, library)
        found = answers(engine, request)
        assert [each.tokens for each in found] == wanted, case
        means = [sum(e.logprob for e in each.logprobs) / len(each.tokens) for each in found]
        assert means == pytest.approx(scores, abs=1e-4, rel=1e-5), case
        if "stop" in case:
            assert any(each.tokens[-1] != EOS and each.finish == "stop" for each in found)


def test_however_steps_are_cut(model: tuple[Path, Any]) -> None:
    plain = TinyEngine(model[0], **SIZES)
    add_all(plain)
    plain.run()
    tight = {"kv_cache_mem_mb": 1, "max_seq_len": 64, "max_batch_tokens_size": 16}
    engine = TinyEngine(model[0], **{**SIZES, **tight})
    add_all(engine)
    engine.run()
    engine.assert_all_free()
    assert engine.engine.stats().preemptions > 0
    for key, outcome in engine.outcomes.items():
        assert outcome.tokens == plain.outcomes[key].tokens, key


def test_grammars_that_are_compiled_later(
    model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TinyEngine(model[0], **SIZES)
    wanted = search(plain, [5, 6, 7], grammar=WORDS)
    plain.run()
    library = SlowLibrary(monkeypatch)
    engine = TinyEngine(model[0], **SIZES)
    aborted = search(engine, [5, 6, 7], grammar=WORDS)
    kept = search(engine, [5, 6, 7], grammar=WORDS)
    wrong = search(engine, [5, 6, 7], grammar="start: /(/")
    engine.step()
    engine.engine.abort([(aborted, 1)])
    library.release = True
    engine.run()
    engine.assert_all_free()
    assert not engine.engine._beams
    assert list(engine.failures) == [wrong]
    assert not any(each.tokens for each in answers(engine, aborted))
    found = [each.tokens for each in answers(engine, kept)]
    assert found == [each.tokens for each in answers(plain, wanted)]


def test_a_grammar_of_two_answers_gives_two(model: tuple[Path, Any]) -> None:
    engine = TinyEngine(model[0], **SIZES)
    request = search(engine, [5, 6, 7], grammar=regex_case("a|b").grammar)
    engine.run()
    engine.assert_all_free()
    found = [engine.outcomes[request, index] for index in range(WIDTH)]
    assert [len(each.tokens) for each in found] == [2, 2, 0, 0]
    assert [each.error for each in found] == [None, None, *["too_few_sequences"] * 2]


@pytest.mark.parametrize(
    "shape",
    [
        {"num_beam_groups": 2, "diversity_penalty": 0.5},
        {"variable_num_beams": (2, 4, 3)},
        {"variable_num_beams": (4, 1, 2)},
    ],
)
def test_groups_and_widths_with_grammars(model: tuple[Path, Any], shape: dict[str, Any]) -> None:
    engine = TinyEngine(model[0], **SIZES)
    inputs = {"beam_search": BeamSearch(**shape)}
    given: dict[str, Any] = {"n": WIDTH, "max_tokens": 30, "inputs": inputs, "grammar": WORDS}
    requests = [engine.add([5, 6, 7 + n], repetition_penalty=1 + 0.1 * n, **given) for n in (0, 3)]
    engine.run()
    engine.assert_all_free()
    library = engine.engine._constraints.library
    assert library is not None and not engine.failures
    for request in requests:
        found = answers(engine, request)
        assert len(found) == shape.get("variable_num_beams", (WIDTH,))[-1]
        for each in found:
            assert each.finish == "stop"
            assert library.compile(WORDS).count_valid(each.tokens) == len(each.tokens)


def test_the_most_likely_tokens_of_each_place(model: tuple[Path, Any]) -> None:
    """Those of the same sequence as a prompt; others in the batch ask for none or for more."""
    engine = TinyEngine(model[0], **SIZES)
    requests = []
    for number, count in enumerate((3, 0, 20, 3)):
        shape: Any = {"num_beam_groups": 2} if number == 3 else {}
        inputs = {"beam_search": BeamSearch(**shape)}
        given: dict[str, Any] = {"n": WIDTH, "max_tokens": 6, "inputs": inputs, "logprobs": count}
        requests.append((engine.add(prompt_of(number), **given), count))
        engine.step()
    engine.run()
    for number, (request, count) in enumerate(requests):
        for outcome in [*answers(engine, request)]:
            whole = [*prompt_of(number), *outcome.tokens]
            scored = engine.add(whole, prompt_logprobs=20, max_tokens=1)
            engine.run()
            for place, entry in enumerate(outcome.logprobs, len(whole) - len(outcome.tokens)):
                wanted = engine.outcomes[scored, 0].prompt_logprobs[place]
                assert len(entry.top) == count
                assert [token for token, _ in entry.top] == [t for t, _ in wanted.top[:count]]
                values = [value for _, value in wanted.top[:count]]
                assert [value for _, value in entry.top] == pytest.approx(values, abs=1e-4)
    engine.assert_all_free()


def test_thinking_before_a_grammar(model: tuple[Path, Any]) -> None:
    """Each beam ends its thinking for itself, by its budget at the latest."""
    engine = TinyEngine(model[0], **SIZES)
    thinking = Thinking(end_ids=(50, 51), budget=3)
    request = search(engine, [5, 6, 7], grammar=WORDS, thinking=thinking, max_tokens=20)
    engine.run()
    engine.assert_all_free()
    library = engine.engine._constraints.library
    for each in answers(engine, request):
        end = each.tokens.index(51)
        assert each.tokens[end - 1] == 50 and end <= 4
        rest = each.tokens[end + 1 :]
        assert library is not None
        assert library.compile(WORDS).count_valid(rest) == len(rest)
