# SPDX-License-Identifier: Apache-2.0
"""Steps overlap while drafts of the device are in flight: the same answers, and no wait for them.

Drafts are what a test says, so that all, some or none of them are right at any place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.messages import INDEX_BITS
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.scripted_drafter import (
    Choose,
    ScriptedDrafter,
    all_right,
    all_wrong,
    some_right,
    true_steps,
)
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.eagle3_models import save_eagle3_head
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.device_step import DeviceStep
from rtp_llm.worker.heads.sample_handle import SampleHandle
from rtp_llm.worker.local_worker import LocalWorker

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
    {"temperature": 1.0, "seed": 5, "speculate": False},
]
SMALL: dict[str, Any] = {
    "kv_cache_mem_mb": 1,
    "seq_size_per_block": 4,
    "max_seq_len": 160,
    "max_running_requests": 24,
    "max_batch_tokens_size": 64,
}
Play = Callable[[TinyEngine], None]


@dataclass
class Model:
    """A folder, and what makes an engine take drafts from the device."""

    folder: Path
    kind: str
    settings: dict[str, Any]


def save_drafting_model(folder: Path, kind: str, words: int = 199) -> Model:
    """A model with a draft head, whose caches are full, or have windows, states or latents."""
    settings: dict[str, Any] = {"speculative": "mtp"}
    if kind in ("llama", "mistral"):
        window = {"sliding_window": 24} if kind == "mistral" else {}
        target, head = save_model(folder, kind, vocab_size=words, **window), folder / "head"
        head.mkdir()
        save_eagle3_head(head, target, draft_vocab_size=words - 2)
        settings = {"speculative": "eagle3", "speculative_model": str(head)}
    else:
        save_mtp_model(folder, kind, vocab_size=words)
    return Model(folder, kind, settings)


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen3_next", "deepseek_v3"])
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with each_token_alone():  # so that verifying in one step rounds as decoding does
        yield save_drafting_model(tmp_path_factory.mktemp("model"), request.param)


def run(folder: Path, play: Play, **settings: Any) -> TinyEngine:
    engine = TinyEngine(folder, seed=3, **settings)
    play(engine)
    engine.run()
    engine.assert_all_free()
    return engine


def script_of(engine: TinyEngine) -> dict[int, list[int]]:
    """What the sequences of an engine said, by their ids."""
    return {
        request << INDEX_BITS | index: outcome.tokens
        for (request, index), outcome in engine.outcomes.items()
    }


def compare(engine: TinyEngine, plain: TinyEngine) -> None:
    """The same outcomes; log-probabilities but for the rounding of states that take in several."""
    for key, outcome in engine.outcomes.items():
        expected = plain.outcomes[key]
        assert (outcome.tokens, outcome.finish) == (expected.tokens, expected.finish), key
        assert outcome.prompt_logprobs.keys() == expected.prompt_logprobs.keys()
        for mine, other in zip(outcome.logprobs, expected.logprobs, strict=True):
            assert [token for token, _ in mine.top] == [token for token, _ in other.top]
            assert mine.logprob == pytest.approx(other.logprob, abs=1e-3)


def overlapped(
    model: Model, script: TinyEngine, choose: Choose, drafts: int = 4, **settings: Any
) -> tuple[TinyEngine, ScriptedDrafter]:
    """An engine whose steps overlap, with ``drafts`` by what ``script`` said."""
    engine = TinyEngine(
        model.folder,
        seed=3,
        enable_overlap=True,
        num_speculative_tokens=drafts,
        **model.settings,
        **settings,
    )
    return engine, ScriptedDrafter(engine, script_of(script), choose)


def add_everything(engine: TinyEngine, rounds: int = 2, **more: Any) -> None:
    for number in range(rounds * len(OPTIONS)):
        options = {"ignore_eos": True, "max_tokens": 24, **OPTIONS[number % len(OPTIONS)], **more}
        engine.add(random_prompt(3 + 7 * number % 60, seed=number % 9), **options)
        if number % 3 == 0:
            engine.step()


def accepted(engine: TinyEngine) -> int:
    return sum(outcome.accepted_drafts for outcome in engine.outcomes.values())


@pytest.mark.parametrize(
    ("choose", "drafts"), [(some_right, 1), (some_right, 3), (some_right, 7), (all_wrong, 3)]
)
def test_all_options_give_the_same(model: Model, choose: Choose, drafts: int) -> None:
    plain = run(model.folder, add_everything)
    engine, drafter = overlapped(model, plain, choose, drafts)
    add_everything(engine)
    engine.run()
    engine.assert_all_free()
    compare(engine, plain)
    assert engine.engine.stats().generated_tokens == plain.engine.stats().generated_tokens
    assert drafter.corrected > 30
    assert accepted(engine) > (100 if choose is some_right else -1)


def test_preemption_and_short_chunks_change_nothing(model: Model) -> None:
    def play(engine: TinyEngine) -> None:
        add_everything(engine, max_tokens=60)

    plain = run(model.folder, play, **SMALL)
    engine, drafter = overlapped(model, plain, some_right, **SMALL)
    play(engine)
    engine.run()
    engine.assert_all_free()
    compare(engine, plain)
    assert drafter.corrected > 30
    assert engine.engine.stats().preemptions > 0 or model.settings["speculative"] == "mtp"


def test_a_sequence_ends_at_each_place(model: Model) -> None:
    prompt = random_prompt(12)
    plain = TinyEngine(model.folder)
    said = plain.tokens(prompt, max_tokens=14, ignore_eos=True)
    for choose in (all_right, some_right):
        engine, drafter = overlapped(model, plain, choose, 3)
        drafter._script = dict.fromkeys((n << INDEX_BITS for n in range(1, 40)), said)
        for place, token in enumerate(said):
            ends = said.index(token)
            for options, expected, finish in (
                ({"stop_token_ids": (token,)}, said[: ends + 1], "stop"),
                ({"max_tokens": place + 1}, said[: place + 1], "length"),
            ):
                wanted: dict[str, Any] = {
                    "max_tokens": 14,
                    "logprobs": 0,
                    "ignore_eos": True,
                    **options,
                }
                request = engine.add(prompt, **wanted)
                engine.run()
                outcome = engine.outcomes[request, 0]
                assert (outcome.tokens, outcome.finish) == (expected, finish)
                assert [entry.token_id for entry in outcome.logprobs] == expected
        engine.assert_all_free()


def test_the_longest_sequence_of_the_model(model: Model) -> None:
    def play(engine: TinyEngine) -> None:
        for length in range(20, 30):
            engine.add(random_prompt(length), max_tokens=40 - length, ignore_eos=True)

    plain = run(model.folder, play, max_seq_len=40)
    engine, _ = overlapped(model, plain, some_right, 7, max_seq_len=40)
    play(engine)
    engine.run()
    engine.assert_all_free()
    compare(engine, plain)


def test_only_accepted_tokens_are_in_the_prefix_cache(model: Model) -> None:
    """The next turn of a conversation reads what the drafts of the last one left."""
    first = random_prompt(30, seed=1)
    plain = TinyEngine(model.folder, reuse_cache=False, seq_size_per_block=4)
    said = plain.tokens(first, max_tokens=30, ignore_eos=True)
    turns = [first, [*first, *said, 5, 6], [*first, *said[:17], 9]]
    for turn in turns[1:]:
        plain.tokens(turn, max_tokens=30, ignore_eos=True)
    engine, _ = overlapped(model, plain, some_right, seq_size_per_block=4)
    for number, turn in enumerate(turns, 1):
        tokens = engine.tokens(turn, max_tokens=30, ignore_eos=True)
        assert tokens == plain.outcomes[number, 0].tokens


def test_arrivals_and_aborts_in_flight(model: Model) -> None:
    def add(engine: TinyEngine, number: int) -> None:
        options: dict[str, Any] = {"temperature": 1.0, "seed": number} if number % 2 else {}
        engine.add(random_prompt(4 + number), ignore_eos=True, max_tokens=20, **options)

    def play(engine: TinyEngine) -> None:
        for number in range(1, 31):
            add(engine, number)

    plain = run(model.folder, play)
    engine, drafter = overlapped(model, plain, some_right, max_running_requests=6)
    for number in range(1, 31):
        add(engine, number)
        engine.step()
        if number % 5 == 0:
            engine.engine.abort([(number - 2, 0)])
    engine.run()
    engine.assert_all_free()
    assert drafter.corrected > 10
    for key, outcome in engine.outcomes.items():
        whole = plain.outcomes[key].tokens
        assert outcome.tokens == (whole if outcome.finish else whole[: len(outcome.tokens)])


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 7}, {"logprobs": 2}])
def test_no_step_waits_for_the_tokens_of_the_one_before(
    model: Model, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(engine: TinyEngine) -> None:
        for length in (5, 9, 14):
            engine.add(random_prompt(length), max_tokens=60, ignore_eos=True, **options)

    plain = run(model.folder, play)
    engine, drafter = overlapped(model, plain, some_right, 3)
    made: list[str] = []
    for owner, name in ((LocalWorker, "execute"), (SampleHandle, "read")):
        whole = getattr(owner, name)

        def noted(*args: Any, whole: Any = whole, name: str = name, **options: Any) -> Any:
            if args[1:] != (None,):  # a step without a plan
                made.append(name)
            return whole(*args, **options)

        monkeypatch.setattr(owner, name, noted)
    play(engine)
    for _ in range(10):
        engine.step()
    assert made == ["execute", "execute"] + 9 * ["read", "execute"] + ["read"]
    assert drafter.assumed >= 8 * 3, "every sequence took part in every step"
    engine.run()
    compare(engine, plain)


class FoundDrafts:
    """The drafts of an engine's own head, by sequence and place in its output."""

    def __init__(self, engine: TinyEngine) -> None:
        sampled = engine.built.worker.runner.sampled
        assert sampled is not None
        self.found: dict[tuple[int, int], list[int]] = {}
        self._sampled, self._verify = sampled, sampled.verify
        sampled.verify = self.verify  # type: ignore[method-assign]

    def verify(self, step: DeviceStep) -> None:
        plan = step.plan
        steps = true_steps(plan, self._sampled)
        for first, end in pairwise(plan.row_cu.tolist()):
            drafts = self._sampled.drafts[first : end - 1].tolist()
            self.found[int(plan.row_ids[first]), int(steps[first])] = drafts
        self._verify(step)


@pytest.mark.parametrize("settings", [{}, {"max_batch_tokens_size": 16, "seq_size_per_block": 4}])
def test_the_head_drafts_as_without_overlap(
    model: Model, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Its keys and values are those of the right tokens, wherever these turn out to be."""
    few = save_drafting_model(tmp_path, model.kind, words=11)  # so that some drafts are right
    engines, found = [], []
    for overlap in (False, True):
        engine = TinyEngine(
            tmp_path, enable_overlap=overlap, reuse_cache=False, **few.settings, **settings
        )
        found.append(FoundDrafts(engine).found)
        for number in range(5):
            engine.add(random_prompt(2 + 9 * number, number, 11), max_tokens=24, ignore_eos=True)
            engine.step()
        engine.run()
        engines.append(engine)
    compare(*engines)
    both = found[0].keys() & found[1].keys()
    assert sum(len(found[0][place]) > 1 and len(found[1][place]) > 1 for place in both) > 20
    for place in both:
        length = min(len(drafts[place]) for drafts in found)
        assert found[0][place][:length] == found[1][place][:length], place
    assert accepted(engines[1]) > 0
