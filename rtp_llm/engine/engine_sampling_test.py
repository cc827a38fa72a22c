# SPDX-License-Identifier: Apache-2.0
"""Tests of sampling through the whole engine, against plain formulas over transformers' logits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import (
    expected_logits,
    expected_tokens,
    random_prompt,
    save_model,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("qwen3")
    reference = save_model(folder, "qwen3", seed=1)
    return TinyEngine(folder, max_batch_tokens_size=64, max_running_requests=32), reference


def greedy_with(reference: Any, prompt: list[int], count: int, change: Any) -> list[int]:
    """Greedy decoding after ``change(logits, prompt + output, output)``, one token at a time."""
    output: list[int] = []
    while len(output) < count:
        logits = expected_logits(reference, [*prompt, *output])[-1].clone()
        output.append(int(change(logits, [*prompt, *output], output).argmax()))
    return output


def test_seeds_give_the_same_tokens_alone_and_in_company(model):
    engine, _ = model
    prompt = random_prompt(33)
    wanted = {"n": 3, "seed": 11, "temperature": 1.5, "ignore_eos": True, "max_tokens": 12}
    alone = engine.add(prompt, **wanted)
    engine.run()
    company = [engine.add(random_prompt(5 + i), temperature=1.0) for i in range(12)]
    again = engine.add(prompt, **wanted)
    company += [engine.add(random_prompt(50 + i), temperature=0.7, top_k=5) for i in range(6)]
    engine.run()
    first = [engine.outcomes[alone, index].tokens for index in range(3)]
    assert first == [engine.outcomes[again, index].tokens for index in range(3)]
    assert len({tuple(tokens) for tokens in first}) == 3
    single = engine.tokens(prompt, **{**wanted, "n": 1})
    assert single == first[0]


def test_without_a_seed_each_request_draws_its_own(model):
    engine, _ = model
    wanted = {"temperature": 2.0, "max_tokens": 12, "ignore_eos": True}
    sampled = {tuple(engine.tokens(random_prompt(9), **wanted)) for _ in range(3)}
    assert len(sampled) == 3


def test_the_engines_seed_makes_a_run_repeatable(tmp_path):
    save_model(tmp_path, "qwen3", seed=1)
    wanted = {"temperature": 2.0, "max_tokens": 12, "ignore_eos": True}
    runs = [TinyEngine(tmp_path, seed=seed) for seed in (5, 5, 6)]
    sampled = [[run.tokens(random_prompt(9), **wanted) for _ in range(2)] for run in runs]
    assert sampled[0] == sampled[1] != sampled[2]


def test_a_fork_shares_its_prompt_and_then_goes_its_own_way(model):
    engine, reference = model
    prompt = random_prompt(41)
    request_id = engine.add(prompt, n=4, ignore_eos=True, max_tokens=20)
    engine.run()
    expected = expected_tokens(reference, prompt, 20)
    for index in range(4):
        assert engine.outcomes[request_id, index].tokens == expected


def test_logprobs_are_those_of_a_plain_softmax(model):
    engine, reference = model
    prompt = random_prompt(25)
    engine.add(random_prompt(10), temperature=1.0, max_tokens=9)
    request_id = engine.add(
        prompt, logprobs=4, repetition_penalty=1.5, logit_bias={17: 3.0}, max_tokens=8
    )
    bare = engine.add(prompt, logprobs=0, max_tokens=8, ignore_eos=True)
    engine.run()
    for each, wanted in ((request_id, 4), (bare, 0)):
        outcome = engine.outcomes[each, 0]
        assert len(outcome.logprobs) == len(outcome.tokens)
        logits = expected_logits(reference, [*prompt, *outcome.tokens])[len(prompt) - 1 : -1]
        scores = logits.log_softmax(-1)
        for entry, token, row in zip(outcome.logprobs, outcome.tokens, scores, strict=True):
            assert entry.token_id == token
            assert entry.logprob == pytest.approx(float(row[token]), abs=1e-3)
            values, ids = row.topk(wanted)
            assert [i for i, _ in entry.top] == ids.tolist()
            assert [v for _, v in entry.top] == pytest.approx(values.tolist(), abs=1e-3)


def test_prompt_logprobs_of_the_whole_vocabulary(model):
    engine, reference = model
    prompt = random_prompt(40, seed=3)
    request_id = engine.add(prompt, prompt_logprobs=-1, max_tokens=1)
    engine.run()
    scores = expected_logits(reference, prompt)[:-1].log_softmax(-1)
    entries = engine.outcomes[request_id, 0].prompt_logprobs
    assert sorted(entries) == list(range(1, 40))
    for position, entry in entries.items():
        assert len(entry.top) == scores.shape[1]
        values = dict(entry.top)
        assert values[prompt[position]] == entry.logprob
        assert [i for i, _ in entry.top].index(prompt[position]) + 1 == entry.rank
        row = [values[token] for token in range(scores.shape[1])]
        assert row == pytest.approx(scores[position - 1].tolist(), abs=2e-3)


@pytest.mark.parametrize("length", [2, 40, 150])
def test_prompt_logprobs_of_a_chunked_prompt(model, length):
    engine, reference = model
    prompt = random_prompt(length, seed=9)
    for _ in range(2):  # the second time the prefix cache must not swallow them
        request_id = engine.add(prompt, prompt_logprobs=3, max_tokens=2, ignore_eos=True)
        engine.add(random_prompt(30), max_tokens=3)
        engine.run()
        scores = expected_logits(reference, prompt)[:-1].log_softmax(-1)
        entries = engine.outcomes[request_id, 0].prompt_logprobs
        assert sorted(entries) == list(range(1, length))
        for position, entry in entries.items():
            row = scores[position - 1]
            assert entry.token_id == prompt[position]
            own = row[prompt[position]]
            sure, perhaps = (int((row >= own + d).sum()) for d in (1e-3, -1e-3))
            assert sure <= entry.rank <= perhaps and entry.rank >= 1
            assert entry.logprob == pytest.approx(float(row[prompt[position]]), abs=2e-3)
            assert [i for i, _ in entry.top] == row.topk(3).indices.tolist()


@pytest.mark.parametrize("inside", [False, True], ids=["between steps", "inside a step"])
def test_prompt_logprobs_outlive_the_first_sequence(model, inside, monkeypatch):
    engine, _ = model
    prompt = random_prompt(150, seed=10)  # three chunks
    alone = engine.add(prompt, prompt_logprobs=2, max_tokens=1)
    engine.run()
    request_id = engine.add(prompt, prompt_logprobs=2, n=3, max_tokens=2, ignore_eos=True)
    engine.step()
    forward = engine.built.worker.runner.forward

    def forward_and_abort(batch: Any) -> Any:
        engine.engine.abort([(request_id, 0), (request_id, 2)])
        return forward(batch)

    if inside:
        monkeypatch.setattr(engine.built.worker.runner, "forward", forward_and_abort)
    else:
        engine.engine.abort([(request_id, 0), (request_id, 2)])
    engine.step()
    monkeypatch.undo()
    engine.run()
    entries = engine.outcomes[request_id, 0].prompt_logprobs
    assert entries == engine.outcomes[alone, 0].prompt_logprobs
    assert sorted(entries) == list(range(1, len(prompt)))
    assert [len(engine.outcomes[request_id, i].tokens) for i in range(3)] == [0, 2, 0]
    assert not engine.built.worker.prompt_heads["score"]._requests
    engine.add(prompt, prompt_logprobs=2, n=2)
    engine.step()
    engine.engine.abort([(request_id + 1, 0), (request_id + 1, 1)])
    assert not engine.built.worker.prompt_heads["score"]._requests


PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 1.5, "frequency_penalty": 1.25}


def penalised(logits: torch.Tensor, history: list[int], output: list[int]) -> torch.Tensor:
    """Repetition counts prompt and output, presence and frequency the output alone."""
    for token in set(history):
        value = logits[token]
        logits[token] = value * 1.3 if value < 0 else value / 1.3
    for token, count in Counter(output).items():
        logits[token] -= 1.5 + 1.25 * count
    return logits


def test_penalties_follow_their_formulas(model):
    engine, reference = model
    prompt = random_prompt(30, seed=2)
    expected = greedy_with(reference, prompt, 12, penalised)
    company = engine.add(random_prompt(12), max_tokens=12)
    for _ in range(2):  # the second time with a prefix from the cache
        several = engine.add(prompt, max_tokens=12, ignore_eos=True, n=3, **PENALTIES)
        engine.run()
        for index in range(3):
            assert engine.outcomes[several, index].tokens == expected
    assert engine.outcomes[several, 0].cached == 16
    assert engine.outcomes[company, 0].tokens
    assert expected != expected_tokens(reference, prompt, 12)


def test_penalties_of_preempted_sequences_know_their_prompts(model, tmp_path):
    _, reference = model
    save_model(tmp_path, "qwen3", seed=1)
    engine = TinyEngine(tmp_path, seq_size_per_block=4, kv_cache_mem_mb=1, max_seq_len=100)
    prompts = [random_prompt(30, seed=seed) for seed in range(12)]
    options = {"max_tokens": 40, "ignore_eos": True, **PENALTIES}
    ids = [engine.add(prompt, **options) for prompt in prompts]
    engine.run()
    assert engine.engine.stats().preemptions > 2
    for request_id, prompt in list(zip(ids, prompts, strict=True))[-3:]:  # the first to give way
        expected = greedy_with(reference, prompt, 40, penalised)
        assert engine.outcomes[request_id, 0].tokens == expected


def test_draws_with_penalties_follow_the_exact_distribution(tmp_path):
    """Chi-square over all pairs of two tokens; the prompt is full of the tokens to sample."""
    reference = save_model(tmp_path, "qwen3", seed=1)
    engine = TinyEngine(tmp_path, max_running_requests=128)
    allowed = [11, 52, 93, 134, 175]
    prompt = [*allowed, *allowed[:3], *allowed]
    temperature, rounds = 6.0, 24
    options = {"allowed_token_ids": allowed, "temperature": temperature, "max_tokens": 2, "n": 128}
    sampled: Counter[tuple[int, ...]] = Counter()
    for seed in range(rounds):
        request_id = engine.add(prompt, seed=seed, ignore_eos=True, **options, **PENALTIES)
        engine.run()
        sampled.update(tuple(engine.outcomes[request_id, index].tokens) for index in range(128))

    def chances(output: list[int]) -> torch.Tensor:
        history = [*prompt, *output]
        logits = penalised(expected_logits(reference, history)[-1].clone(), history, output)
        return (logits[allowed].double() / temperature).softmax(0)

    first = chances([])
    chi_square = 0.0
    for token, chance in zip(allowed, first.tolist(), strict=True):
        for other, follows in zip(allowed, chances([token]).tolist(), strict=True):
            expected = rounds * 128 * chance * follows
            assert expected > 5
            chi_square += (sampled[token, other] - expected) ** 2 / expected
    freedom = len(allowed) ** 2 - 1
    assert sum(sampled.values()) == rounds * 128
    # Five standard deviations: the seeds are fixed, so this cannot fail by chance later.
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_no_ngram_comes_twice(model):
    engine, _ = model
    prompt = random_prompt(6, seed=2)
    tokens = engine.tokens(
        prompt, max_tokens=60, ignore_eos=True, no_repeat_ngram_size=2, logit_bias={7: 8.0, 8: 8.0}
    )
    pairs = list(zip([*prompt, *tokens], [*prompt, *tokens][1:], strict=False))
    assert len(set(pairs)) == len(pairs)


def test_logit_bias_decides(model):
    engine, _ = model
    prompt = random_prompt(6)
    assert engine.tokens(prompt, max_tokens=3, logit_bias={77: 100.0}) == [77, 77, 77]
    free = engine.tokens(prompt, max_tokens=1)
    assert engine.tokens(prompt, max_tokens=1, logit_bias={free[0]: -100.0}) != free


def test_only_allowed_tokens_are_generated(model):
    engine, reference = model
    prompt = random_prompt(20, seed=4)
    allowed = [3, 8, 15, 16, 77, 100]

    def change(logits: torch.Tensor, history: list[int], output: list[int]) -> torch.Tensor:
        masked = torch.full_like(logits, -torch.inf)
        masked[allowed] = logits[allowed]
        return masked

    expected = greedy_with(reference, prompt, 8, change)
    wanted = {"max_tokens": 8, "ignore_eos": True}
    assert engine.tokens(prompt, allowed_token_ids=allowed, **wanted) == expected
    ids = [engine.add(prompt, allowed_token_ids=allowed, n=2, **wanted)]
    free = engine.add(prompt, **wanted)
    one = engine.add(prompt, allowed_token_ids=[9], **wanted)
    engine.run()
    assert [engine.outcomes[ids[0], index].tokens for index in range(2)] == [expected] * 2
    assert engine.outcomes[one, 0].tokens == [9] * 8
    assert engine.outcomes[free, 0].tokens == expected_tokens(reference, prompt, 8)
    assert engine.tokens(prompt, **wanted) == expected_tokens(reference, prompt, 8)


def test_bad_words_are_banned_behind_their_beginning_only(model):
    engine, reference = model
    prompt = random_prompt(20, seed=4)
    wanted = {"max_tokens": 12, "ignore_eos": True}
    free = expected_tokens(reference, prompt, 12)
    words = [free[:1], free[3:5], [*free[5:8], 1], [prompt[-1], free[1]], [5]]

    def change(logits: torch.Tensor, history: list[int], output: list[int]) -> torch.Tensor:
        for word in words:
            head = word[:-1]
            if not head or output[-len(head) :] == head:
                logits[word[-1]] = -torch.inf
        return logits

    expected = greedy_with(reference, prompt, 12, change)
    assert expected != free
    first = engine.add(prompt, bad_words_token_ids=words, **wanted)
    # Only what was generated counts, not the prompt.
    other = engine.add(prompt, bad_words_token_ids=[[prompt[-1], free[0]]], **wanted)
    alone = engine.add(prompt, **wanted)
    engine.run()
    assert engine.outcomes[first, 0].tokens == expected
    assert engine.outcomes[other, 0].tokens == engine.outcomes[alone, 0].tokens == free
    again = [free[:4], free[:7]]  # of unequal lengths, and longer than what there is at first
    tokens = engine.tokens(prompt, bad_words_token_ids=again, **wanted)
    assert tokens[:3] == free[:3] and tokens[3] != free[3]
    assert engine.tokens(prompt, **wanted) == free


def test_logprobs_of_ids_that_were_named(model):
    engine, reference = model
    prompt = random_prompt(25)
    ids = [7, 3, 150]
    named = engine.add(prompt, logprob_token_ids=ids, max_tokens=6, ignore_eos=True)
    top = engine.add(prompt, logprobs=1, max_tokens=6, ignore_eos=True)
    engine.add(prompt, max_tokens=6, ignore_eos=True)
    engine.run()
    outcome = engine.outcomes[named, 0]
    logits = expected_logits(reference, [*prompt, *outcome.tokens])[len(prompt) - 1 : -1]
    scores = logits.log_softmax(-1)
    for entry, token, row in zip(outcome.logprobs, outcome.tokens, scores, strict=True):
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert [i for i, _ in entry.top] == ids
        assert [v for _, v in entry.top] == pytest.approx(row[ids].tolist(), abs=1e-3)
    assert [len(entry.top) for entry in engine.outcomes[top, 0].logprobs] == [1] * 6
    single = engine.add(prompt, logprob_token_ids=[9], logprobs=0, max_tokens=1)
    engine.run()
    assert [i for i, _ in engine.outcomes[single, 0].logprobs[0].top] == [9]


def test_a_bias_ends_with_its_request(model):
    """The next request in its place has no bias, even next to requests that have one."""
    engine, reference = model
    prompt = random_prompt(6)
    engine.tokens(prompt, max_tokens=2, logit_bias={77: 100.0})
    free = engine.add(prompt, max_tokens=3, ignore_eos=True)
    biased = engine.add(prompt, max_tokens=3, logit_bias={78: 100.0})
    engine.run()
    assert engine.outcomes[free, 0].tokens == expected_tokens(reference, prompt, 3)
    assert engine.outcomes[biased, 0].tokens == [78] * 3


def test_logits_processors_come_first_and_once_for_all_their_rows(model):
    engine, _ = model
    calls = []

    def only_even(logits: torch.Tensor, rows: Any) -> None:
        calls.append(len(rows.sequence_ids))
        assert rows.history(0)[:2].tolist() == [5, 6]
        logits[:, 1::2] = -torch.inf

    mine = [engine.add([5, 6, i], processors=[only_even], max_tokens=6) for i in (7, 8)]
    other = engine.add([5, 6, 9], max_tokens=6, ignore_eos=True)
    engine.run()
    for request_id in mine:
        assert all(token % 2 == 0 for token in engine.outcomes[request_id, 0].tokens)
    assert calls[0] == 2
    assert any(token % 2 for token in engine.outcomes[other, 0].tokens)
    before = len(calls)
    aborted = engine.add([5, 6, 7], processors=[only_even], max_tokens=50, ignore_eos=True)
    engine.step()
    engine.engine.abort([(aborted, 0)])
    engine.tokens([5, 6, 7], max_tokens=3)
    assert len(calls) == before + 1
