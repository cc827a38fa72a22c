# SPDX-License-Identifier: Apache-2.0
"""N-grams that the device matches: the drafts of the host's matcher, and the tokens without drafts.

On the CPU the host matches them, so that these tests choose the device for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.engine.start.explain_speculation import explain_speculation
from rtp_llm.engine.start.memory_plan import step_limits
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.ngram_comparison import ComparingEngine
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.heads.logits_processor import ProcessorRows
from rtp_llm.worker.speculative import methods
from rtp_llm.worker.speculative.device_proposer import DeviceProposer
from rtp_llm.worker.speculative.ngram_drafter import NgramDrafter

WORDS = 23  # so few that random text repeats itself now and then
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "seed": 4},
    {"temperature": 1.0, "top_k": 3, "n": 3, "logprobs": 2},
    {"repetition_penalty": 1.2, "presence_penalty": -1.0},
    {"min_tokens": 12, "stop_token_ids": tuple(range(0, WORDS, 3))},
    {"speculate": False},
    {"logit_bias": {5: 90.0, 6: 89.5}, "temperature": 1.0},
    {"no_repeat_ngram_size": 4, "max_tokens": 2},
]
SMALL: dict[str, Any] = {
    "kv_cache_mem_mb": 1,
    "seq_size_per_block": 4,
    "max_seq_len": 200,
    "max_running_requests": 12,
    "max_batch_tokens_size": 64,
}


@pytest.fixture(autouse=True)
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "matches_on_device", lambda settings, device: True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "llama", vocab_size=WORDS)
    with each_token_alone():  # so that verifying in one step rounds as decoding does
        yield path


def play(engine: TinyEngine, count: int = 12, **more: Any) -> None:
    """The same requests, whose prompts repeat themselves more or less; some come later."""
    for number in range(count):
        prompt = random_prompt(4 + 3 * number % 40, number, WORDS) * (1 + number % 3)
        options = {"max_tokens": 24, "ignore_eos": True, **OPTIONS[number % len(OPTIONS)], **more}
        engine.add(prompt, **options)
        if number % 4 == 3:
            engine.step()
    engine.run()
    engine.assert_all_free()


@pytest.fixture(scope="module")
def plain(folder: Path) -> TinyEngine:
    engine = TinyEngine(folder, seed=3)
    play(engine)
    return engine


def assert_same(engine: TinyEngine, plain: TinyEngine) -> None:
    for outcome in (*engine.outcomes.values(), *plain.outcomes.values()):
        outcome.cached = 0  # hangs on when a step ran
    assert engine.outcomes == plain.outcomes


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 7])
def test_answers_stay_the_same(folder: Path, plain: TinyEngine, overlap: bool, tokens: int) -> None:
    drafting = {"speculative": "ngram", "num_speculative_tokens": tokens}
    engine = TinyEngine(folder, seed=3, enable_overlap=overlap, **drafting)
    assert isinstance(engine.engine._proposer, DeviceProposer)
    assert isinstance(engine.built.worker.drafter, NgramDrafter)
    play(engine)
    assert_same(engine, plain)
    assert engine.engine.stats().spec_decode_num_accepted_tokens > 10
    for (request, _), outcome in engine.outcomes.items():
        options = OPTIONS[(request - 1) % len(OPTIONS)]
        assert (outcome.drafts > 0) is (options.get("speculate", True) and len(outcome.tokens) > 2)


@pytest.mark.parametrize(("drafts", "min_n", "max_n"), [(1, 1, 1), (3, 2, 4), (7, 1, 3)])
def test_drafts_are_those_of_the_host(folder: Path, drafts: int, min_n: int, max_n: int) -> None:
    engine = ComparingEngine(folder, drafts, min_n=min_n, max_n=max_n, seed=3)
    play(engine)
    assert engine.found > 50
    assert engine.missing > 10


def test_preempted_sequences_keep_their_histories(folder: Path) -> None:
    drafting = {"speculative": "ngram", "num_speculative_tokens": 3, "enable_overlap": True}
    plain = TinyEngine(folder, seed=3, **SMALL)
    compared = ComparingEngine(folder, 3, seed=3, **SMALL)
    overlapped = TinyEngine(folder, seed=3, **drafting, **SMALL)
    for each in (plain, compared, overlapped):
        play(each, 20, max_tokens=60)
    for each in (compared, overlapped):
        assert_same(each, plain)
        assert each.engine.stats().preemptions > 0
    assert compared.found > 100


def test_no_step_waits_for_drafts_in_flight(folder: Path) -> None:
    """And histories have what was accepted, in the next step already."""
    prompts = [random_prompt(20 + 3 * seed, seed, WORDS) for seed in range(3)]
    plain = TinyEngine(folder)
    engine = TinyEngine(folder, speculative="ngram", enable_overlap=True)
    for each in (plain, engine):
        for prompt in prompts:
            each.add(prompt, max_tokens=60, ignore_eos=True)
    plain.run()
    drafter = engine.built.worker.drafter
    assert isinstance(drafter, NgramDrafter)
    whole = [prompts[i] + plain.outcomes[1 + i, 0].tokens for i in range(3)]
    most = 0
    for _ in range(14):
        engine.step()
        assert engine.engine._in_flight is not None
        histories = drafter.histories
        for row in histories._of_slot[histories._of_slot >= 0].tolist():
            text = histories.tokens[row, : int(histories.lens[row])].tolist()
            assert any(text == said[: len(text)] for said in whole)
            most = max(most, len(text))
    assert most > 20 + 14
    engine.run()
    assert_same(engine, plain)
    assert engine.engine.stats().spec_decode_num_accepted_tokens > 5


def test_arrivals_and_aborts_between_steps(folder: Path) -> None:
    """Slots and histories are used again and again."""
    options = {"max_tokens": 15, "ignore_eos": True, "temperature": 0.5}
    plain = TinyEngine(folder, seed=3)
    engine = ComparingEngine(folder, 3, seed=3, max_running_requests=6)
    prompts = [random_prompt(5 + number, number, WORDS) * 2 for number in range(20)]
    for number, prompt in enumerate(prompts, 1):
        plain.add(prompt, **options)
        engine.add(prompt, **options, n=1 + number % 2)
        engine.step()
        if number % 5 == 0:
            engine.engine.abort([(number - 1, 0), (number, 0)])
    plain.run()
    engine.run()
    engine.assert_all_free()
    assert engine.found > 50
    for (request, index), outcome in engine.outcomes.items():
        if index == 0:
            whole = plain.outcomes[request, 0].tokens
            assert outcome.tokens == (whole if outcome.finish else whole[: len(outcome.tokens)])


@pytest.mark.parametrize("overlap", [False, True])
def test_a_sequence_ends_at_each_place_of_a_window(folder: Path, overlap: bool) -> None:
    prompt, options = [7, 8, 9] * 4, {"logit_bias": {5: 100.0}, "temperature": 0.0}
    engine = TinyEngine(
        folder, speculative="ngram", num_speculative_tokens=5, enable_overlap=overlap
    )
    for length in range(1, 14):
        ends = {"max_tokens": length, "ignore_eos": True}
        assert engine.tokens(prompt, **options, **ends) == [5] * length
        stops = {"max_tokens": 30, "min_tokens": length - 1, "stop_token_ids": (5,)}
        said = engine.tokens(prompt, **options, **stops)
        assert len(said) == length and said[-1] == 5
    assert engine.engine.stats().spec_decode_num_accepted_tokens > 30
    engine.assert_all_free()


class Recorder:
    """A logits processor that keeps the histories that it was shown."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, logits: torch.Tensor, rows: ProcessorRows) -> None:
        self.seen += [rows.history(row).tolist() for row in range(len(rows.steps))]


@pytest.mark.parametrize("overlap", [False, True])
def test_drafts_that_are_not_there_are_rejected_and_read_by_nobody(
    folder: Path, overlap: bool
) -> None:
    """The CPU's embedding would refuse an id of -1."""
    plain = TinyEngine(folder, seed=3)
    none = {"prompt_lookup_min": 32, "prompt_lookup_max": 32}
    drafting = {"speculative": "ngram", "enable_overlap": overlap, **none}
    engine = TinyEngine(folder, seed=3, **drafting)
    recorder = Recorder()
    for each in (plain, engine):
        each.add(random_prompt(9, 0, WORDS), max_tokens=12, ignore_eos=True, processors=[recorder])
        each.add(random_prompt(9, 0, WORDS), max_tokens=12, ignore_eos=True, repetition_penalty=1.5)
        play(each)
    assert_same(engine, plain)
    assert all(min(history) >= 0 for history in recorder.seen)
    stats = engine.engine.stats()
    assert stats.spec_decode_num_draft_tokens > 50
    assert stats.spec_decode_num_accepted_tokens == 0


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_next"])
def test_latents_experts_and_states(tmp_path: Path, family: str) -> None:
    save_model(tmp_path, family, vocab_size=WORDS)
    with each_token_alone():
        plain, engine = TinyEngine(tmp_path, seed=3), ComparingEngine(tmp_path, 3, seed=3)
        for each in (plain, engine):
            play(each, 8)
    # Log-probabilities round with the window in which a state took a token in.
    for key, outcome in engine.outcomes.items():
        assert outcome.tokens == plain.outcomes[key].tokens
    assert engine.found > 50


def test_explain_says_who_matches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = resolve_device("cpu")
    settings = Settings(model=str(folder), speculative="ngram", max_running_requests=10)
    limits = step_limits(settings, read_model_config(str(folder)), device)
    assert "; the device makes the next drafts" in explain_speculation(settings, device)
    expected = 4 * 10 * (limits.max_model_len + 1)
    assert methods.drafter_bytes(settings, device, limits) == expected
    monkeypatch.undo()
    assert not methods.matches_on_device(settings, device), "its steps do not overlap"
    assert "; the host finds them" in explain_speculation(settings, device)
    assert methods.drafter_bytes(settings, device, limits) == 0
    assert methods.make_proposer(settings, device).needs_tokens
    monkeypatch.setattr(device, "asynchronous", True, raising=False)
    assert methods.matches_on_device(settings, device), "there is a kernel"
    assert not methods.make_proposer(settings, device).needs_tokens


@pytest.mark.parametrize(("overlap", "host"), [(None, False), (True, False), (False, True)])
def test_the_host_matches_where_steps_do_not_overlap(
    folder: Path, overlap: bool | None, host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(CpuDevice, "asynchronous", True)
    chosen = {"speculative": "ngram", "enable_overlap": overlap, "max_running_requests": 4}
    engine = TinyEngine(folder, **chosen)
    worker = engine.built.worker
    assert (worker.drafter is None) is host
    assert engine.built.limits.max_draft_tokens > 0
    settings, device = Settings(model=str(folder), **chosen), resolve_device("cpu")
    assert ("the host finds them" in explain_speculation(settings, device)) is host
    assert (methods.drafter_bytes(settings, device, engine.built.limits) == 0) is host
