"""Workers in other processes give what one in this process gives."""

from __future__ import annotations

import os
import signal

import pytest

from rtp_llm.engine.messages import EngineDeadError, RequestError
from rtp_llm.engine.process_worker_for_tests import TinyEngineElsewhere
from rtp_llm.native import load_runtime
from rtp_llm.testing.tiny_engine import TinyEngine
from rtp_llm.testing.transformers_models import random_prompt, save_model
from rtp_llm.worker.shared.process_worker import ProcessWorker, WorkerLostError

HERE = "rtp_llm.engine.process_worker_for_tests"
WISHES = [
    {},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.9, "top_p": 0.8, "n": 3},
    {"temperature": 1.0, "logprobs": 3},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.2},
    {"logit_bias": {5: 4.0}, "logprobs": 0, "n": 2},
    {"min_tokens": 9, "stop_token_ids": tuple(range(0, 199, 5)), "temperature": 1.0},
    {"prompt_logprobs": 2, "max_tokens": 5},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mistral")
    save_model(path, "mistral", sliding_window=24)
    return path


def play(engine):
    """Requests that arrive, are aborted and have prefixes in common; the outcomes."""
    for number in range(3 * len(WISHES)):
        wish = {"ignore_eos": True, "max_tokens": 60, **WISHES[number % len(WISHES)]}
        engine.add(random_prompt(3 + 11 * number % 90, seed=number % 5), **wish)
        engine.step()
    engine.add(random_prompt(50), pooling="mean", max_tokens=2)
    aborted = engine.add(random_prompt(50), max_tokens=90)
    engine.engine.abort([(aborted, 0)])
    engine.run()
    engine.assert_all_free()
    return engine.outcomes


@pytest.mark.parametrize(
    ("num_workers", "overlap"), [(1, False), (1, True), (2, True)], ids=["1", "1-overlap", "2"]
)
def test_the_same_outcomes(folder, num_workers, overlap):
    small = {"seq_size_per_block": 4, "max_batch_tokens_size": 40, "kv_cache_mem_mb": 1}
    settings = {"seed": 3, "enable_overlap": overlap, "max_running_requests": 24, **small}
    expected = play(TinyEngine(folder, **settings, max_seq_len=160))
    engine = TinyEngineElsewhere(folder, num_workers=num_workers, **settings, max_seq_len=160)
    try:
        assert play(engine) == expected
        assert engine.engine.stats().preemptions > 0
    finally:
        engine.worker.close()


def test_a_killed_worker_ends_the_engine(folder):
    engine = TinyEngineElsewhere(folder)
    try:
        engine.add(random_prompt(9), max_tokens=200, ignore_eos=True)
        engine.step()
        os.kill(engine.worker._processes[0].pid, signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="worker 0 ended with exit code -9"):
            engine.run()
        with pytest.raises(EngineDeadError):
            engine.step()
    finally:
        engine.worker.close()


def test_a_failing_step_says_why(folder):
    engine = TinyEngineElsewhere(folder, factory=f"{HERE}:make_breaking_worker")
    try:
        engine.add(random_prompt(9))
        with pytest.raises(WorkerLostError, match="worker 0: ArithmeticError: this step cannot"):
            engine.run()
    finally:
        engine.worker.close()


def test_a_worker_that_cannot_be_made_says_why(folder):
    with pytest.raises(WorkerLostError, match="worker 0: ValueError: there is no worker"):
        TinyEngineElsewhere(folder, factory=f"{HERE}:make_nothing")


def test_logits_processors_are_refused(folder):
    engine = TinyEngineElsewhere(folder)
    try:
        with pytest.raises(RequestError, match="logits_processors run in this process"):
            engine.add([5, 6], processors=[lambda logits, rows: None])
        assert not engine.engine.has_work
    finally:
        engine.worker.close()


def test_drafts_are_refused():
    runtime = load_runtime()
    config = runtime.SchedulerConfig(
        [runtime.CacheGroup("full", 20, 4)], max_model_len=40, shared_batch=True, max_draft_tokens=3
    )
    with pytest.raises(ValueError, match="max_draft_tokens=3 is not supported by workers in other"):
        ProcessWorker(runtime.Scheduler(config), f"{HERE}:make_nothing", max_rows=8)
