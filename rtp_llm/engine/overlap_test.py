# SPDX-License-Identifier: Apache-2.0
"""Steps that overlap give what steps one after the other give, on a CPU that is told to overlap."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.engine.start import build_worker
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.heads.sample_handle import SampleHandle
from rtp_llm.worker.model_runner import ModelRunner

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
    {"priority": -1, "ignore_eos": False, "temperature": 1.5},
]


@pytest.fixture(scope="module", params=["llama", "mistral"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    save_model(path, request.param, **({"sliding_window": 24} if request.param != "llama" else {}))
    return path


def both(folder, play, **settings):
    """What `play` makes of an engine in lockstep and of one whose steps overlap."""
    results = []
    for overlap in (False, True):
        engine = TinyEngine(folder, seed=3, enable_overlap=overlap, **settings)
        play(engine)
        engine.run()
        engine.assert_all_free()
        results.append(engine)
    return results


def add_everything(engine, rounds=2, **more):
    for number in range(rounds * len(OPTIONS)):
        options = {"ignore_eos": True, "max_tokens": 24, **OPTIONS[number % len(OPTIONS)], **more}
        engine.add(random_prompt(3 + 7 * number % 60, seed=number % 9), **options)


def test_all_options_give_the_same(folder):
    lockstep, overlapped = both(folder, add_everything)
    assert overlapped.outcomes == lockstep.outcomes
    finishes = {outcome.finish for outcome in overlapped.outcomes.values()}
    assert finishes == {"stop", "length"}
    stats = [each.engine.stats() for each in (lockstep, overlapped)]
    assert stats[0].generated_tokens == stats[1].generated_tokens, "not a token too many"


def test_preemption_changes_no_token(folder):
    small = {
        "kv_cache_mem_mb": 1,
        "seq_size_per_block": 4,
        "max_seq_len": 160,
        "max_running_requests": 24,
        "max_batch_tokens_size": 40,
    }

    def play(engine):
        add_everything(engine, rounds=3, max_tokens=60)

    with each_token_alone():  # what is computed again is in other chunks
        lockstep, overlapped = both(folder, play, **small)
    for engine in (lockstep, overlapped):
        for outcome in engine.outcomes.values():
            outcome.cached = 0  # of what is computed again
    assert overlapped.outcomes == lockstep.outcomes
    assert overlapped.engine.stats().preemptions > 0


def test_arrivals_and_aborts_between_steps(folder):
    def play(engine):
        for number in range(40):
            engine.add(random_prompt(5 + number), ignore_eos=True, max_tokens=20, temperature=1.0)
            engine.step()
            if number % 5 == 4:
                engine.engine.abort([(number - 1, 0)])

    lockstep, overlapped = both(folder, play, max_running_requests=6)
    for key, outcome in lockstep.outcomes.items():
        tokens = overlapped.outcomes[key].tokens
        if outcome.finish and overlapped.outcomes[key].finish:
            assert tokens == outcome.tokens
        else:  # aborted: one of them may have come further
            common = min(len(tokens), len(outcome.tokens))
            assert tokens[:common] == outcome.tokens[:common]


def test_the_prefix_cache_serves_as_much(folder):
    def play(engine):
        for _ in range(3):
            engine.tokens(random_prompt(70, seed=1), max_tokens=20, ignore_eos=True)

    lockstep, overlapped = both(folder, play)
    assert overlapped.outcomes == lockstep.outcomes
    assert overlapped.outcomes[3, 0].cached == 64


@pytest.mark.parametrize(
    ("enable_overlap", "asynchronous", "expected"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_steps_overlap_on_asynchronous_devices_or_where_set(enable_overlap, asynchronous, expected):
    device: Any = SimpleNamespace(asynchronous=asynchronous)
    assert (
        build_worker._overlaps(Settings(model="m", enable_overlap=enable_overlap), device)
        == expected
    )


class Calls:
    """The order in which an engine launches steps and reads their tokens."""

    def __init__(self, monkeypatch):
        self.made: list[str] = []
        for owner, name in ((ModelRunner, "forward"), (SampleHandle, "read")):
            monkeypatch.setattr(owner, name, self._noted(name, getattr(owner, name)))

    def _noted(self, name, function):
        def call(*args):
            self.made.append(name)
            return function(*args)

        return call


def test_the_next_step_is_launched_before_the_tokens_are_read(folder, monkeypatch):
    engine = TinyEngine(folder, enable_overlap=True)
    engine.add([5, 6, 7], max_tokens=4, ignore_eos=True)
    calls = Calls(monkeypatch)
    engine.run()
    assert calls.made == [
        "forward",
        "forward",
        "read",
        "forward",
        "read",
        "forward",
        "read",
        "read",
    ]


class Recorder:
    """A logits processor that writes down the histories that it was shown."""

    def __init__(self):
        self.seen: list[tuple[int, list[int]]] = []

    def __call__(self, logits, rows):
        for index, step in enumerate(rows.steps.tolist()):
            self.seen.append((step, rows.history(index).tolist()))
            logits[index, (7 * step + len(rows.history(index))) % 199] += 100.0


def test_logits_processors_see_every_token_of_their_sequences(folder):
    recorders = []

    def play(engine):
        recorders.append(Recorder())
        engine.add(random_prompt(20), max_tokens=30, ignore_eos=True, temperature=1.0)
        for _ in range(5):
            engine.step()
        engine.add(random_prompt(9), processors=[recorders[-1]], max_tokens=6, ignore_eos=True)

    lockstep, overlapped = both(folder, play)
    assert overlapped.outcomes == lockstep.outcomes
    assert recorders[0].seen == recorders[1].seen
    assert [step for step, _ in recorders[1].seen] == list(range(6)), "no row after the last token"
    assert all(min(history) >= 0 for _, history in recorders[1].seen)


def test_steps_with_a_processor_overlap_too(folder, monkeypatch):
    engine = TinyEngine(folder, enable_overlap=True)
    engine.add([5, 6, 7], max_tokens=3, ignore_eos=True, processors=[lambda logits, rows: None])
    engine.add([8, 9], max_tokens=5, ignore_eos=True)
    calls = Calls(monkeypatch)
    engine.run()
    assert calls.made == ["forward"] + ["forward", "read"] * 4 + ["read"]


def test_work_is_left_while_a_step_is_in_flight(folder):
    engine = TinyEngine(folder, enable_overlap=True)
    request_id = engine.add([5, 6, 7], max_tokens=20, ignore_eos=True)
    engine.step()
    engine.engine.abort([(request_id, 0)])
    assert engine.engine.has_work
    engine.step()
    assert len(engine.outcomes[request_id, 0].tokens) == 1
    assert not engine.engine.has_work
    engine.assert_all_free()


def test_scores_of_an_aborted_prompt_stay_where_they_are(folder):
    engine = TinyEngine(folder, enable_overlap=True, max_batch_tokens_size=16)
    victim = engine.add(random_prompt(40), prompt_logprobs=2, max_tokens=9)
    one_left = engine.add(random_prompt(16, seed=4), prompt_logprobs=2, n=2, max_tokens=9)
    engine.step()
    engine.engine.abort([(victim, 0), (one_left, 0)])
    del engine.outcomes[victim, 0]
    engine.run()
    assert len(engine.outcomes[one_left, 0].prompt_logprobs) == 15
    assert not engine.built.worker.prompt_heads["score"]._requests
    engine.assert_all_free()


@pytest.mark.parametrize("where", ["forward", "read"])
def test_after_an_interrupt_the_engine_goes_on(folder, where, monkeypatch):
    prompt = random_prompt(30)
    expected = TinyEngine(folder).tokens(prompt, max_tokens=12, ignore_eos=True)
    engine = TinyEngine(folder, enable_overlap=True)
    ids = [engine.add(random_prompt(9 + i), max_tokens=30, ignore_eos=True) for i in range(3)]
    for _ in range(4):
        engine.step()

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    owner = ModelRunner if where == "forward" else SampleHandle
    with monkeypatch.context() as patched:
        patched.setattr(owner, where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    engine.engine.abort([(each, 0) for each in ids])
    engine.run()
    assert engine.engine.alive
    assert engine.tokens(prompt, max_tokens=12, ignore_eos=True) == expected
    engine.assert_all_free()


def test_dead_rows_say_nothing(folder):
    """A sequence that ends by its token has a row in the next step; nobody hears of it."""
    engine = TinyEngine(folder, enable_overlap=True)
    free = engine.tokens(random_prompt(12), max_tokens=8, ignore_eos=True)
    stop = free[3]
    engine.add(random_prompt(12), stop_token_ids=(stop,), max_tokens=8, ignore_eos=True)
    before = engine.engine.stats().generated_tokens
    rows = []
    while engine.engine.has_work:
        (output,) = engine.engine.step()
        rows.append(np.frombuffer(output.num_tokens, np.int32).tolist())
    length = free.index(stop) + 1
    assert rows == [[1]] * length + [[0]]
    assert engine.engine.stats().generated_tokens == before + length
    engine.assert_all_free()
