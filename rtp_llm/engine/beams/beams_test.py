# SPDX-License-Identifier: Apache-2.0
"""Beam searches find what transformers finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm import ops
from rtp_llm.engine.messages import RequestError
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.testing.engine.beam_reference import expected_beams, score_of
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tensor_ranks import ranks
from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.heads.logits_processor import ProcessorRows

WORDS, EOS = 97, 2
SIZES: dict[str, Any] = {
    "seq_size_per_block": 4,
    "max_seq_len": 100,
    "max_running_requests": 40,
    "max_batch_tokens_size": 64,
}
SEARCHES = [
    {},
    {"length_penalty": 0.0, "early_stopping": True},
    {"length_penalty": 2.0},
    {"length_penalty": -1.0},
    {"length_penalty": 1.5, "early_stopping": "never"},
    {"length_penalty": -0.5, "early_stopping": "never"},
]
MIXED: list[dict[str, Any]] = [
    *SEARCHES,
    *SEARCHES[:4],
    {"num_beam_groups": 2, "diversity_penalty": 0.9, "early_stopping": True},
    {"variable_num_beams": (2, 4, 3)},
]


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def models(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """A folder and transformers' model of it; ends of sequences are likely."""
    folder = tmp_path_factory.mktemp("model")
    reference = save_model(folder, request.param, vocab_size=WORDS, eos_token_id=EOS)
    with each_token_alone():
        yield folder, reference


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "llama", vocab_size=WORDS, eos_token_id=EOS)
    return path


def search(engine: TinyEngine, prompt: list[int], width: int, count: int, **options: Any) -> int:
    given = {"n": width, "max_tokens": count, "stop_token_ids": (5,)}
    return engine.add(prompt, inputs={"beam_search": BeamSearch(**options)}, **given)


def answers(engine: TinyEngine, request: int) -> list[Outcome]:
    return [outcome for (each, _), outcome in sorted(engine.outcomes.items()) if each == request]


@pytest.mark.parametrize(("width", "overlap"), [(2, False), (5, True), (16, False)])
def test_as_transformers(models: tuple[Path, Any], width: int, overlap: bool) -> None:
    folder, reference = models
    engine = TinyEngine(folder, enable_overlap=overlap, **SIZES)
    cases = [(random_prompt(3 + 9 * n, n, WORDS), options) for n, options in enumerate(SEARCHES)]
    requests = [search(engine, prompt, width, 14, **options) for prompt, options in cases]
    other = engine.add(random_prompt(9, 5, WORDS), max_tokens=30, logprobs=1, ignore_eos=True)
    engine.run()
    engine.assert_all_free()
    assert len(engine.outcomes[other, 0].logprobs) == 30
    for request, (prompt, options) in zip(requests, cases, strict=True):
        wanted, scores = expected_beams(reference, prompt, width, 14, (EOS, 5), **options)
        found = answers(engine, request)
        assert [each.tokens for each in found] == wanted, options
        penalty = options.get("length_penalty", 1.0)
        assert [score_of(each, penalty) for each in found] == pytest.approx(
            scores, abs=1e-4, rel=1e-5
        )
        for each in found:
            stopped = each.tokens[-1] in (EOS, 5)
            assert each.finish == ("stop" if stopped else "length")


def run(folder: Path, **settings: Any) -> TinyEngine:
    """Searches and other requests that arrive between steps."""
    engine = TinyEngine(folder, **{**SIZES, **settings})
    for number, options in enumerate(MIXED):
        search(engine, random_prompt(5 + 7 * number % 40, number, WORDS), 4, 20, **options)
        engine.add(random_prompt(3 + number % 5, number, WORDS), max_tokens=55, ignore_eos=True)
        engine.step()
    engine.run()
    engine.assert_all_free()
    return engine


@pytest.mark.parametrize("overlap", [False, True])
def test_however_steps_are_cut(models: tuple[Path, Any], overlap: bool) -> None:
    plain = run(models[0], enable_overlap=overlap, reuse_cache=False)
    few_blocks = models[1].config.model_type == "llama"  # the other one needs more for its states
    tight = {"kv_cache_mem_mb": 1 if few_blocks else 3, "max_seq_len": 64}
    engine = run(models[0], enable_overlap=overlap, max_batch_tokens_size=16, **tight)
    assert engine.engine.stats().preemptions > 0 or not few_blocks
    for key, outcome in engine.outcomes.items():
        assert outcome.tokens == plain.outcomes[key].tokens, key
        assert outcome.finish == plain.outcomes[key].finish


def search_changed(engine: TinyEngine, number: int) -> int:
    """A search with changed logits."""
    rules = [{"repetition_penalty": 1.4}, {"min_tokens": 9}, {"no_repeat_ngram_size": 2}]
    given: dict[str, Any] = {"n": 4, "max_tokens": 12, **rules[number]}
    inputs = {"beam_search": BeamSearch()}
    return engine.add(random_prompt(9, number, WORDS), inputs=inputs, **given)


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize(("size", "stages"), [(2, 1), (1, 2)])
def test_ranks_and_drafts(size: int, stages: int, tmp_path: Path) -> None:
    save_model(tmp_path, "llama", vocab_size=WORDS, eos_token_id=EOS)
    plain = run(tmp_path)
    changed = [search_changed(plain, number) for number in range(3)]
    plain.run()
    drafting = run(tmp_path, speculative="ngram", num_speculative_tokens=3)
    given = {**SIZES, "kv_cache_mem_mb": 8, "pipeline_parallel_size": stages}
    with ranks(tmp_path, size, **given) as engine:
        requests = [
            search(engine, random_prompt(5 + 7 * number % 40, number, WORDS), 4, 20, **options)
            for number, options in enumerate(MIXED)
        ]
        more = [search_changed(engine, number) for number in range(3)]
        engine.run()
        engine.assert_all_free()
    for other, request in zip(changed, more, strict=True):
        wanted = [each.tokens for each in answers(plain, other)]
        assert [each.tokens for each in answers(engine, request)] == wanted
    for number, request in enumerate(requests):
        wanted = [each.tokens for each in answers(plain, 2 * number + 1)]
        assert [each.tokens for each in answers(engine, request)] == wanted
        assert [each.tokens for each in answers(drafting, 2 * number + 1)] == wanted


def test_width_1_is_greedy(folder: Path) -> None:
    engine, prompt = TinyEngine(folder, **SIZES), random_prompt(9, 1, WORDS)
    request = search(engine, prompt, 1, 12)
    assert engine.tokens(prompt, max_tokens=12, stop_token_ids=(5,)) == (
        engine.outcomes[request, 0].tokens
    )


def test_the_best_of_more_beams(folder: Path) -> None:
    engine, prompt = TinyEngine(folder, **SIZES), random_prompt(9, 1, WORDS)
    requests = []
    for best_of in (None, 2):
        requests.append(search(engine, prompt, 5, 12, num_return_sequences=best_of))
        engine.run()
    every, best = (answers(engine, request) for request in requests)
    assert [each.cached for each in (every[0], best[0])] == [0, 8]
    assert [each.tokens for each in best[:2]] == [each.tokens for each in every[:2]]
    assert [each.error for each in best] == [None] * 2 + ["too_few_sequences"] * 3
    assert not any(each.error for each in every)


@pytest.mark.parametrize("overlap", [False, True])
def test_an_abort_of_one_ends_all(folder: Path, overlap: bool) -> None:
    engine = TinyEngine(folder, enable_overlap=overlap, **SIZES)
    request = search(engine, random_prompt(9, 1, WORDS), 4, 30)
    for _ in range(5):
        engine.step()
    engine.engine.abort([(request, 2)])
    assert overlap or not engine.engine.has_work
    engine.run()  # the step in flight
    engine.assert_all_free()
    assert not any(outcome.tokens for outcome in answers(engine, request))


@pytest.mark.parametrize("overlap", [False, True])
def test_nan_ends_all(folder: Path, overlap: bool) -> None:
    engine = TinyEngine(folder, enable_overlap=overlap, **SIZES)
    head = engine.built.worker.runner.model
    request = search(engine, random_prompt(9, 1, WORDS), 4, 30)
    for _ in range(3):
        engine.step()
    computed = head.compute_logits
    head.compute_logits = lambda hidden: computed(hidden).fill_(torch.nan)
    engine.run()
    engine.assert_all_free()
    for outcome in answers(engine, request):
        assert (outcome.finish, outcome.error) == ("error", "model_produced_nan")
        assert not outcome.tokens


def lower_some(logits: torch.Tensor, rows: ProcessorRows) -> None:
    logits[:, 3:9] -= 1.0


def play(folder: Path, overlap: bool, **settings: Any) -> TinyEngine:
    """Searches among requests whose logits wait for the host and others that are sampled."""
    engine = TinyEngine(folder, enable_overlap=overlap, **{**SIZES, **settings})
    for number, options in enumerate(MIXED):
        search(engine, random_prompt(5 + 7 * number % 40, number, WORDS), 4, 20, **options)
        given: dict[str, Any] = {"max_tokens": 25, "ignore_eos": True}
        prompt = random_prompt(3 + number % 5, number, WORDS)
        engine.add(prompt, processors=[lower_some] if number % 2 else [], **given)
        engine.add(prompt, n=3, temperature=1.0, seed=number, **given)
        engine.step()
        if number == 4:
            engine.engine.abort([(1, 0)])
    while engine.engine.has_work:
        engine.step()
        engine.engine.check_integrity()
    engine.assert_all_free()
    return engine


def test_overlapping_among_other_requests(folder: Path) -> None:
    with each_token_alone():
        lockstep = play(folder, overlap=False)
        tight = play(folder, overlap=True, kv_cache_mem_mb=1, max_seq_len=64)
    assert tight.engine.stats().preemptions > 0
    for key, outcome in lockstep.outcomes.items():
        if key[0] != 1:
            assert tight.outcomes[key].tokens == outcome.tokens, key


def test_steps_as_graphs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device orders the memory that graphs read; searches come and go."""
    with each_token_alone():
        eager = run(folder, enable_overlap=False)
        counts = capture_on_cpu(monkeypatch)
        ordered = ops.kernel_calls("order_beams")
        replayed = run(folder, enable_overlap=True, enable_graphs=True)
    assert {each: outcome.tokens for each, outcome in replayed.outcomes.items()} == {
        each: outcome.tokens for each, outcome in eager.outcomes.items()
    }
    assert ops.kernel_calls("order_beams") - ordered > 5
    assert sum(counts.values()) > 5


@pytest.mark.parametrize(
    ("overlaps", "given"),
    [
        (True, {}),
        (True, {"early_stopping": True, "num_return_sequences": 2}),
        (True, {"variable_num_beams": (4,)}),
        (False, {"variable_num_beams": (2, 4)}),
        (False, {"num_beam_groups": 2}),
        (False, {"repetition_penalty": 1.2}),
        (False, {"min_tokens": 2}),
        (False, {"n": 1}),
    ],
)
def test_which_searches_overlap(folder: Path, overlaps: bool, given: dict[str, Any]) -> None:
    engine = TinyEngine(folder, enable_overlap=True, **SIZES)
    fields = {"n", "repetition_penalty", "min_tokens"} & given.keys()
    options = {name: value for name, value in given.items() if name not in fields}
    params = {"n": 4, "max_tokens": 9, "ignore_eos": True, **{each: given[each] for each in fields}}
    prompt, inputs = random_prompt(9, 1, WORDS), {"beam_search": BeamSearch(**options)}
    engine.add(prompt, inputs=inputs, **params)
    steps = 0
    while engine.engine.has_work:
        engine.step()
        steps += 1
        scheduler = engine.engine._scheduler
        # A step is in flight when one returns, the first ones of a prompt aside.
        if 1 < steps < 7:
            assert len(scheduler.uncommitted) == overlaps, steps
        engine.engine.check_integrity()
    engine.assert_all_free()


@pytest.fixture(scope="module")
def refusing(folder: Path) -> TinyEngine:
    return TinyEngine(folder, **{**SIZES, "kv_cache_mem_mb": 1})


@pytest.mark.parametrize(
    ("problem", "fields"),
    [
        ("temperature must be 0", {"temperature": 0.5}),
        ("logprob_token_ids", {"logprob_token_ids": (3,)}),
        ("n=40 beams need 120 candidates each, the vocabulary has 97", {"n": 40}),
        ("tokenizer", {"grammar": "x"}),
        ("cache blocks", {"n": 16, "max_tokens": 90}),
        ("is not below|vocabulary|stop_token_ids", {"stop_token_ids": (WORDS,)}),
    ],
)
def test_what_is_refused(refusing: TinyEngine, problem: str, fields: dict[str, Any]) -> None:
    engine = refusing
    given = {"n": 2, "max_tokens": 4, "stop_token_ids": (5,), **fields}
    with pytest.raises(RequestError, match=problem):
        engine.add([3, 4], inputs={"beam_search": BeamSearch()}, **given)
    assert not engine.engine.has_work
    assert not engine.engine._beams
