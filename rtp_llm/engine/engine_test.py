# SPDX-License-Identifier: Apache-2.0
"""Tests of the engine over tiny models, compared with transformers where it has the answer."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rtp_llm.engine.messages import EngineDeadError, RequestError
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import (
    clear_prompt,
    expected_tokens,
    random_prompt,
    save_model,
)
from rtp_llm.worker.model_runner import ModelRunner

LENGTHS = (1, 3, 16, 17, 31, 40, 48, 65, 100, 5, 16, 33, 64, 80, 2, 20)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("llama")
    return folder, save_model(folder, "llama")


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("mistral")
    return folder, save_model(folder, "mistral", sliding_window=48, seed=3)


def prompts() -> list[list[int]]:
    return [random_prompt(length, seed=number) for number, length in enumerate(LENGTHS)]


def test_a_batch_of_mixed_prompts_gives_what_each_gives_alone(llama):
    folder, reference = llama
    engine = TinyEngine(folder, max_batch_tokens_size=128)
    ids = [engine.add(prompt, max_tokens=24, ignore_eos=True) for prompt in prompts()]
    engine.run()
    for request_id, prompt in zip(ids, prompts(), strict=True):
        outcome = engine.outcomes[request_id, 0]
        assert outcome.tokens == expected_tokens(reference, prompt, 24)
        assert outcome.finish == "length"
    engine.assert_all_free()
    alone = TinyEngine(folder, reuse_cache=False)
    assert alone.tokens(prompts()[7], max_tokens=24, ignore_eos=True) == (
        engine.outcomes[ids[7], 0].tokens
    )


def test_in_bfloat16_too_the_batch_changes_nothing(llama):
    """As long as each prompt is one chunk; docs/serving.md says what else rounds differently."""
    settings = {"dtype": "bfloat16", "max_batch_tokens_size": 1024, "reuse_cache": False}
    alone = TinyEngine(llama[0], **settings)
    wanted = {"max_tokens": 48, "ignore_eos": True}
    expected = [alone.tokens(prompt, **wanted) for prompt in prompts()]
    together = TinyEngine(llama[0], **settings)
    ids = [together.add(prompt, **wanted) for prompt in prompts()]
    together.run()
    assert [together.outcomes[each, 0].tokens for each in ids] == expected


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_the_prefix_cache_changes_nothing_but_the_work(kind, request):
    folder, reference = request.getfixturevalue(kind)
    engine = TinyEngine(folder)
    prompt = random_prompt(70, seed=1)
    expected = expected_tokens(reference, prompt, 20)
    assert engine.tokens(prompt, max_tokens=20, ignore_eos=True) == expected
    again = engine.add(prompt, max_tokens=20, ignore_eos=True)
    longer = engine.add([*prompt, 7, 8, 9], max_tokens=20, ignore_eos=True)
    other = engine.add(prompt, max_tokens=20, ignore_eos=True, key="another tenant")
    engine.run()
    assert engine.outcomes[again, 0].tokens == expected
    assert engine.outcomes[again, 0].cached == 64
    assert engine.outcomes[longer, 0].tokens == expected_tokens(reference, [*prompt, 7, 8, 9], 20)
    assert engine.outcomes[longer, 0].cached == 64
    assert engine.outcomes[other, 0].tokens == expected
    assert engine.outcomes[other, 0].cached == 0
    stats = engine.engine.stats()
    assert stats.prefix_hit_tokens == 128
    without = TinyEngine(folder, reuse_cache=False)
    for _ in range(2):
        assert without.tokens(prompt, max_tokens=20, ignore_eos=True) == expected
    assert without.engine.stats().prefix_hit_tokens == 0


@pytest.mark.parametrize("kind", ["llama", "mistral"])
@pytest.mark.parametrize("chunk", [16, 64])
def test_preemption_in_a_tiny_cache_gives_the_same_tokens(kind, chunk, request):
    folder, reference = request.getfixturevalue(kind)
    engine = TinyEngine(
        folder,
        kv_cache_mem_mb=1,
        seq_size_per_block=4,
        max_seq_len=160,
        max_running_requests=8,
        max_batch_tokens_size=chunk,
    )
    lengths = (60, 50, 40, 30, 20, 10, 45, 35)
    inputs = [clear_prompt(reference, length, 48) for length in lengths]
    ids = [engine.add(prompt, max_tokens=48, ignore_eos=True) for prompt, _ in inputs]
    engine.run()
    for request_id, (_, expected) in zip(ids, inputs, strict=True):
        assert engine.outcomes[request_id, 0].tokens == expected
    assert engine.engine.stats().preemptions > 0
    engine.assert_all_free()


def test_aborts_at_every_state_free_all_blocks(llama):
    engine = TinyEngine(llama[0], max_running_requests=2, max_batch_tokens_size=16)
    prompt = random_prompt(60)
    for steps in range(12):
        running = engine.add(prompt, n=2, max_tokens=100, ignore_eos=True)
        waiting = engine.add(prompt, max_tokens=100)
        for _ in range(steps):
            engine.step()
        engine.engine.abort([(running, 0), (running, 1), (waiting, 0), (12345, 0)])
        assert not engine.engine.has_work
        engine.assert_all_free()
    assert engine.engine.step() == []


def test_one_of_several_sequences_may_be_aborted(llama):
    engine = TinyEngine(llama[0])
    request_id = engine.add(random_prompt(20), n=3, seed=4, temperature=1.0, ignore_eos=True)
    for _ in range(4):
        engine.step()
    engine.engine.abort([(request_id, 1)])
    engine.run()
    lengths = [len(engine.outcomes[request_id, index].tokens) for index in range(3)]
    assert lengths == [16, 4, 16]
    engine.assert_all_free()


def test_stop_rules(llama):
    folder, reference = llama
    engine = TinyEngine(folder)
    prompt = random_prompt(30, seed=5)
    free = expected_tokens(reference, prompt, 16)
    stop = free[6]
    first = free.index(stop)
    outcome = engine.outcomes[engine.add(prompt, stop_token_ids=(stop,), ignore_eos=True), 0]
    engine.run()
    assert outcome.tokens == free[: first + 1]
    assert (outcome.finish, outcome.stop_token) == ("stop", stop)

    later = engine.add(prompt, stop_token_ids=(stop,), min_tokens=first + 2, ignore_eos=True)
    engine.run()
    tokens = engine.outcomes[later, 0].tokens
    assert len(tokens) >= first + 2
    assert stop not in tokens[: first + 1]

    eos = engine.ready.eos_token_ids[0]
    forced = {"logit_bias": {eos: 100.0}, "max_tokens": 5}
    ended = engine.add(prompt, **forced)
    ignored = engine.add(prompt, ignore_eos=True, **forced)
    held = engine.add(prompt, min_tokens=3, **forced)
    engine.run()
    assert engine.outcomes[ended, 0].tokens == [eos]
    assert engine.outcomes[ended, 0].stop_token == eos
    assert engine.outcomes[ignored, 0].tokens == [eos] * 5
    assert engine.outcomes[ignored, 0].finish == "length"
    assert engine.outcomes[held, 0].tokens == [*free[:3], eos]


def test_without_max_tokens_the_context_is_the_end(llama):
    engine = TinyEngine(llama[0], max_seq_len=64)
    outcome = engine.outcomes[engine.add(random_prompt(50), max_tokens=None, ignore_eos=True), 0]
    engine.run()
    assert (len(outcome.tokens), outcome.finish) == (14, "length")


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, "the prompt has no tokens"),
        ([3, 199], {}, "prompt: token id 199 is outside the vocabulary of 199"),
        ([3, -1], {}, "prompt: token id -1"),
        ([3], {"stop_token_ids": (198, 200)}, "stop_token_ids: token id 200 is outside"),
        ([3], {"logit_bias": {5: 1.0, 199: 1.0}}, "logit_bias: token id 199 is outside"),
        ([3] * 60, {"max_tokens": 5}, "60 tokens and max_tokens=5 make 65 .* sequence of 64"),
        ([3] * 64, {"max_tokens": None}, "make 65 tokens"),
    ],
)
def test_a_request_that_cannot_run_is_refused_with_the_numbers(llama, prompt, params, words):
    engine = TinyEngine(llama[0], max_seq_len=64)
    with pytest.raises(RequestError, match=words) as caught:
        engine.add(prompt, **params)
    assert caught.value.kind == "invalid"
    assert not engine.engine.has_work


def test_dynamic_rope_past_the_trained_length_is_warned_of(tmp_path, caplog):
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    save_model(tmp_path, "llama", rope_parameters=rope)
    TinyEngine(tmp_path)
    assert not [line for line in caplog.messages if "dynamic rope" in line]
    TinyEngine(tmp_path, max_seq_len=400)
    (warning,) = (line for line in caplog.messages if "dynamic rope" in line)
    assert "more than 256 tokens" in warning


def test_the_queue_is_bounded(llama):
    engine = TinyEngine(llama[0], max_running_requests=2, max_queued_requests=3)
    for _ in range(2):
        engine.add([5, 6], max_tokens=40, ignore_eos=True)
    engine.step()
    for _ in range(3):
        engine.add([5, 6])
    with pytest.raises(RequestError) as caught:
        engine.add([5, 6])
    assert caught.value.kind == "queue_full"
    engine.run()
    engine.assert_all_free()


def test_priorities_come_first(llama):
    engine = TinyEngine(llama[0], max_running_requests=1)
    ids = [engine.add([5, 6], max_tokens=2, ignore_eos=True, priority=p) for p in (0, 0, -5)]
    order = []
    while engine.engine.has_work:
        engine.step()
        order += [i for i in ids if engine.outcomes[i, 0].finish and i not in order]
    assert order.index(ids[2]) < order.index(ids[1])


@pytest.mark.parametrize(("aging_steps", "first"), [(1, "older"), (256, "urgent")])
def test_waiting_is_worth_priority(llama, aging_steps, first):
    engine = TinyEngine(llama[0], max_running_requests=1, aging_steps=aging_steps)
    engine.add([5, 6], max_tokens=20, ignore_eos=True)
    older = engine.add([5, 6], max_tokens=2)
    for _ in range(8):
        engine.step()
    urgent = engine.add([5, 6], max_tokens=2, priority=-5)
    ids = {"older": older, "urgent": urgent}
    while not (done := [name for name in ids if engine.outcomes[ids[name], 0].finish]):
        engine.step()
    assert done == [first]
    engine.run()


def test_deltas_say_how_long_a_sequence_waited_for_its_first_step(llama):
    engine = TinyEngine(llama[0], max_running_requests=1)
    began = time.monotonic()
    first, second = (engine.add([5, 6], max_tokens=20, ignore_eos=True) for _ in range(2))
    while not engine.outcomes[first, 0].finish:
        engine.step()
    ended = time.monotonic()
    engine.run()
    waited = [engine.outcomes[each, 0].queue_seconds for each in (first, second)]
    assert 0 <= waited[0] < waited[1]
    # It began once the other had ended; steps may overlap by one.
    assert (ended - began) / 2 < waited[1] <= time.monotonic() - began


def test_a_failed_step_ends_the_engine_clearly(llama, monkeypatch):
    engine = TinyEngine(llama[0])
    engine.add([5, 6, 7])

    def fail(self: object, batch: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(ModelRunner, "forward", fail)
    with pytest.raises(ZeroDivisionError, match="made up"):
        engine.step()
    for call in (engine.step, lambda: engine.add([5]), lambda: engine.engine.abort([(1, 0)])):
        with pytest.raises(EngineDeadError, match="a step failed: ZeroDivisionError: made up"):
            call()
    assert not engine.engine.alive


def test_stats_count_what_happened(llama):
    engine = TinyEngine(llama[0], max_batch_tokens_size=256)
    for _ in range(3):
        engine.add(random_prompt(20), max_tokens=5, ignore_eos=True)
    engine.run()
    stats = engine.engine.stats()
    assert (stats.prompt_tokens, stats.generated_tokens, stats.steps) == (60, 15, 5)
    assert stats.batch_size == 3
    assert stats.kv_used_ratio == 0.0
    assert stats.step_age == 0.0
