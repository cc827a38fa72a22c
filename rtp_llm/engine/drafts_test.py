# SPDX-License-Identifier: Apache-2.0
"""Engines that verify drafts give what engines without drafts give, token for token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.engine.messages import INDEX_BITS
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.replays import Replays
from rtp_llm.testing.engine.scripted_proposer import (
    Distort,
    ScriptedProposer,
    ragged,
    right,
    unknown,
    wrong,
)
from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.heads.logits_processor import ProcessorRows
from rtp_llm.worker.inputs.graph_inputs import GraphInputs
from rtp_llm.worker.inputs.graph_sizes import GraphSize

OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "n": 3},
    {"temperature": 1.0, "logprobs": 3},
    {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    {"temperature": 1.0, "no_repeat_ngram_size": 2, "n": 2},
    {"logit_bias": {5: 4.0, 9: -3.0}, "logprobs": 0},
    {"min_tokens": 9, "stop_token_ids": tuple(range(0, 199, 5)), "temperature": 1.0},
    {"stop_token_ids": tuple(range(1, 199, 3)), "temperature": 1.2, "n": 2},
    {"max_tokens": 1},
    {"max_tokens": 2, "temperature": 1.0},
    {"prompt_logprobs": 2, "max_tokens": 5},
    {"bad_words_token_ids": ((5, 6), (7,)), "logprob_token_ids": (3, 4), "temperature": 1.0},
    {"allowed_token_ids": tuple(range(20, 60)), "temperature": 1.0},
    {"priority": -1, "ignore_eos": False, "temperature": 1.5},
]
SMALL: dict[str, Any] = {
    "kv_cache_mem_mb": 1,
    "seq_size_per_block": 4,
    "max_seq_len": 160,
    "max_running_requests": 24,
    "max_batch_tokens_size": 64,
}
Play = Callable[[TinyEngine], None]


@pytest.fixture(scope="module", params=["llama", "mistral"])
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp(request.param)
    save_model(path, request.param, **({"sliding_window": 24} if request.param != "llama" else {}))
    with each_token_alone():  # so that verifying in one step rounds as decoding does
        yield path


def script_of(engine: TinyEngine) -> dict[int, list[int]]:
    """What the sequences of an engine said, by their ids."""
    return {
        request << INDEX_BITS | index: outcome.tokens
        for (request, index), outcome in engine.outcomes.items()
    }


def compare(engine: TinyEngine, plain: TinyEngine) -> None:
    """The outcomes are the same, but for what depends on when a step ran."""
    for outcome in (*engine.outcomes.values(), *plain.outcomes.values()):
        outcome.cached = 0
    assert engine.outcomes == plain.outcomes


def run(folder: Path, play: Play, **settings: Any) -> TinyEngine:
    engine = TinyEngine(folder, seed=3, **settings)
    play(engine)
    engine.run()
    engine.assert_all_free()
    return engine


def run_both(
    folder: Path,
    play: Play,
    distort: Distort,
    *,
    needs_tokens: bool = False,
    max_draft_tokens: int = 4,
    **settings: Any,
) -> tuple[TinyEngine, ScriptedProposer]:
    """Play with and without drafts: the same outcomes; what drafted, and its proposer."""
    plain = run(folder, play, **settings)
    proposer = ScriptedProposer(
        script_of(plain), distort, needs_tokens=needs_tokens, max_draft_tokens=max_draft_tokens
    )
    engine = run(folder, play, proposer=proposer, **settings)
    compare(engine, plain)
    assert not proposer.known, "it hears of every end"
    assert engine.engine.stats().generated_tokens == plain.engine.stats().generated_tokens
    return engine, proposer


def add_everything(engine: TinyEngine, rounds: int = 2, **more: Any) -> None:
    for number in range(rounds * len(OPTIONS)):
        options = {"ignore_eos": True, "max_tokens": 24, **OPTIONS[number % len(OPTIONS)], **more}
        engine.add(random_prompt(3 + 7 * number % 60, seed=number % 9), **options)


@pytest.mark.parametrize("needs_tokens", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_all_options_give_the_same(folder: Path, overlap: bool, needs_tokens: bool) -> None:
    _, proposer = run_both(
        folder, add_everything, ragged, needs_tokens=needs_tokens, enable_overlap=overlap
    )
    assert proposer.lengths == {0, 1, 2, 3, 4}
    assert proposer.accepted > 100


@pytest.mark.parametrize(("distort", "steps"), [(right, 1 + 4), (wrong, 1 + 19), (unknown, 1 + 19)])
@pytest.mark.parametrize("overlap", [False, True])
def test_right_drafts_save_steps(folder: Path, distort: Distort, steps: int, overlap: bool) -> None:
    def play(engine: TinyEngine) -> None:
        for seed in range(3):
            engine.add(random_prompt(9, seed=seed), max_tokens=20, ignore_eos=True)

    engine, proposer = run_both(folder, play, distort, enable_overlap=overlap)
    assert engine.engine.stats().steps == steps
    assert proposer.accepted == (3 * (4 + 4 + 4 + 3) if distort is right else 0)


@pytest.mark.parametrize("max_draft_tokens", [1, 7])
def test_preemption_changes_no_token(folder: Path, max_draft_tokens: int) -> None:
    def play(engine: TinyEngine) -> None:
        add_everything(engine, rounds=2, max_tokens=60)

    engine, proposer = run_both(
        folder, play, ragged, max_draft_tokens=max_draft_tokens, enable_overlap=True, **SMALL
    )
    assert engine.engine.stats().preemptions > 0
    assert proposer.accepted > 100


@pytest.mark.parametrize("distort", [right, ragged])
def test_only_accepted_tokens_are_in_the_prefix_cache(folder: Path, distort: Distort) -> None:
    """The next turn of a conversation reads what the drafts of the last one left."""
    first = random_prompt(30, seed=1)
    plain = TinyEngine(folder, reuse_cache=False, seq_size_per_block=4)
    said = plain.tokens(first, max_tokens=30, ignore_eos=True)
    turns = [first, [*first, *said, 5, 6], [*first, *said[:17], 9]]
    for turn in turns[1:]:
        plain.tokens(turn, max_tokens=30, ignore_eos=True)
    proposer = ScriptedProposer(script_of(plain), distort)
    engine = TinyEngine(folder, proposer=proposer, enable_overlap=True, seq_size_per_block=4)
    for number, turn in enumerate(turns, 1):
        tokens = engine.tokens(turn, max_tokens=30, ignore_eos=True)
        assert tokens == plain.outcomes[number, 0].tokens
    assert engine.outcomes[2, 0].cached == 56, "all but the last token was computed"
    assert engine.outcomes[3, 0].cached == 44


@pytest.mark.parametrize("overlap", [False, True])
def test_a_sequence_ends_at_each_place_among_accepted_tokens(folder: Path, overlap: bool) -> None:
    prompt = random_prompt(12)
    plain = TinyEngine(folder)
    said = plain.tokens(prompt, max_tokens=12, ignore_eos=True)
    everything = dict.fromkeys((number << INDEX_BITS for number in range(1, 40)), said)
    engine = TinyEngine(folder, proposer=ScriptedProposer(everything), enable_overlap=overlap)
    eos = engine.ready.eos_token_ids[0]
    for place, token in enumerate(said):
        ends = said.index(token)
        biased = {"logit_bias": {eos: 100.0}, "min_tokens": place}
        for options, expected, finish in (
            ({"stop_token_ids": (token,), "ignore_eos": True}, said[: ends + 1], "stop"),
            ({"max_tokens": place + 1, "ignore_eos": True}, said[: place + 1], "length"),
            (biased, [*said[: max(0, place - 1)], eos], "stop"),
        ):
            request = engine.add(prompt, **{"max_tokens": 12, "logprobs": 0, **options})
            engine.run()
            outcome = engine.outcomes[request, 0]
            if "logit_bias" not in options:
                assert (outcome.tokens, outcome.finish) == (expected, finish)
            else:
                assert outcome.tokens[-1] == eos and outcome.finish == finish
            assert [entry.token_id for entry in outcome.logprobs] == outcome.tokens
    engine.assert_all_free()


def test_arrivals_and_aborts_between_steps(folder: Path) -> None:
    def play(engine: TinyEngine) -> None:
        for number in range(40):
            engine.add(random_prompt(5 + number), ignore_eos=True, max_tokens=20, temperature=1.0)

    plain = run(folder, play)
    proposer = ScriptedProposer(script_of(plain), ragged)
    engine = TinyEngine(
        folder, seed=3, proposer=proposer, enable_overlap=True, max_running_requests=6
    )
    for number in range(1, 41):
        engine.add(random_prompt(4 + number), ignore_eos=True, max_tokens=20, temperature=1.0)
        engine.step()
        if number % 5 == 0:
            engine.engine.abort([(number - 1, 0)])
    engine.run()
    engine.assert_all_free()
    assert not proposer.known
    for key, outcome in engine.outcomes.items():
        whole = plain.outcomes[key].tokens
        assert outcome.tokens == (whole if outcome.finish else whole[: len(outcome.tokens)])


class Recorder:
    """A logits processor that writes down the histories that it was shown, and breaks a row."""

    def __init__(self, broken_step: int | None = None) -> None:
        self.seen: dict[int, list[list[int]]] = {}
        self._broken_step = broken_step

    def __call__(self, logits: torch.Tensor, rows: ProcessorRows) -> None:
        for index, step in enumerate(rows.steps.tolist()):
            history = rows.history(index).tolist()
            self.seen.setdefault(step, []).append(history)
            logits[index, (7 * step + sum(history)) % 199] += 100.0
            if step == self._broken_step:
                logits[index] = torch.nan


@pytest.mark.parametrize("overlap", [False, True])
def test_logits_processors_see_a_history_for_every_draft(folder: Path, overlap: bool) -> None:
    recorders: list[Recorder] = []

    def play(engine: TinyEngine) -> None:
        recorders.append(Recorder())
        engine.add(random_prompt(20), max_tokens=30, ignore_eos=True, temperature=1.0)
        for _ in range(3):
            engine.step()
        engine.add(random_prompt(9), processors=[recorders[-1]], max_tokens=16, ignore_eos=True)

    run_both(folder, play, ragged, enable_overlap=overlap)
    plain, drafted = recorders
    assert drafted.seen.keys() == plain.seen.keys(), "no row after the last token"
    for step, (history,) in plain.seen.items():
        assert history in drafted.seen[step]


def test_a_row_that_breaks_ends_the_sequence_behind_what_was_accepted(folder: Path) -> None:
    prompt = random_prompt(9)
    plain = TinyEngine(folder)
    said = plain.tokens(prompt, max_tokens=16, ignore_eos=True, processors=[Recorder()])
    for step in range(1, 7):
        engine = TinyEngine(folder, proposer=ScriptedProposer({1 << INDEX_BITS: said}))
        request = engine.add(prompt, ignore_eos=True, processors=[Recorder(step)])
        engine.run()
        expected = Outcome(said[:step], "error", "model_produced_nan")
        assert engine.outcomes[request, 0] == expected
        engine.assert_all_free()


def test_graphs_take_steps_with_drafts(folder: Path) -> None:
    prompts = [random_prompt(length) for length in (3, 18, 33)]
    plain = TinyEngine(folder)
    for prompt in prompts:
        plain.tokens(prompt, max_tokens=20, ignore_eos=True)
    proposer = ScriptedProposer(script_of(plain), ragged)
    engine = TinyEngine(folder, proposer=proposer)
    runner = engine.built.worker.runner
    size = GraphSize(tokens=32, sequences=6, longest=32)
    inputs = GraphInputs(runner.cache, runner.device, size, 512, engine.ready.block_size)
    inputs.clear()
    runner._graphs = replays = Replays(runner._layers, inputs, size)  # type: ignore[assignment]
    for prompt in prompts:
        engine.add(prompt, max_tokens=20, ignore_eos=True)
    engine.run()
    compare(engine, plain)
    assert replays.count >= 5
    assert proposer.accepted > 0
