# SPDX-License-Identifier: Apache-2.0
"""The engine over a device whose memory is not the host's: every copy goes through the device."""

from __future__ import annotations

import pytest

from rtp_llm import ops
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.engine.start import build
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.fake_torch import gpu_in_host_memory
from rtp_llm.testing.models.transformers_models import random_prompt, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    save_model(path, "qwen3", seed=3)
    return path


def engine_on(device, folder, monkeypatch):
    monkeypatch.setattr(build, "resolve_device", lambda requested: device)
    # A graph of the fake torch does nothing when it is replayed.
    return TinyEngine(folder, seed=5, enable_graphs=False)


def count_waits(fake):
    return fake.cuda.main.waits + sum(event.waits for event in fake.cuda.events)


def logprobs(entries):
    """A GPU may go through a layer in other passes than the CPU: last digits differ."""
    return [entry.logprob for entry in entries]


OPTIONS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "top_p": 0.9, "n": 2},
    {"temperature": 0.7, "repetition_penalty": 1.3, "logit_bias": {5: 2.0}, "min_tokens": 3},
    {"temperature": 1.0, "no_repeat_ngram_size": 2, "logprobs": 2},
]


def test_copies_change_no_token_and_a_step_waits_once(folder, monkeypatch):
    device, fake = gpu_in_host_memory()
    results = []
    for each in (CpuDevice(), device):
        engine = engine_on(each, folder, monkeypatch)
        waits, steps = count_waits(fake), 0
        fake.cuda.calls.clear()
        for number, options in enumerate(OPTIONS):
            engine.add(random_prompt(30 + number), ignore_eos=True, max_tokens=12, **options)
        while engine.engine.has_work:
            engine.step()
            steps += 1
        assert count_waits(fake) - waits == (steps if each is device else 0)
        results.append(engine.outcomes)
    tokens = [{key: each.tokens for key, each in outcomes.items()} for outcomes in results]
    assert tokens[0] == tokens[1]
    scored = [logprobs(outcomes[4, 0].logprobs) for outcomes in results]
    assert len(scored[0]) == 12
    assert scored[1] == pytest.approx(scored[0], abs=1e-5)
    assert fake.pinned > 0
    assert not fake.cuda.calls, "once it is built nothing is asked of the driver"


def test_prompt_scores_come_back_through_the_device(folder, monkeypatch):
    scores = []
    for each in (CpuDevice(), gpu_in_host_memory()[0]):
        engine = engine_on(each, folder, monkeypatch)
        engine.add(random_prompt(20), prompt_logprobs=2, max_tokens=2)
        engine.run()
        entries = engine.outcomes[1, 0].prompt_logprobs
        scores.append(logprobs(entries[place] for place in sorted(entries)))
    assert len(scores[0]) == 19
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


def test_steps_run_eagerly_where_references_stand_in(folder, monkeypatch, caplog):
    monkeypatch.setattr(ops, "operators_without_kernel", lambda kind: ["sample"])
    device, fake = gpu_in_host_memory()
    monkeypatch.setattr(build, "resolve_device", lambda requested: device)
    engine = TinyEngine(folder, allow_reference_ops=True)
    assert engine.tokens(random_prompt(5), max_tokens=3, ignore_eos=True)
    assert fake.cuda.captured == []
    assert "no graphs are captured: PyTorch stands in for sample" in caplog.messages
