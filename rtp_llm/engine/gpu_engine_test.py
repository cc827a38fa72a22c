# SPDX-License-Identifier: Apache-2.0
"""The whole engine on a GPU gives the CPU's tokens; skipped without one."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.device import MemoryInfo, resolve_device
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpu


def tiny_engine(folder, **settings):
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    return TinyEngine(folder, **settings)


# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
DEVICE = usable_gpu()
GPU = DEVICE and DEVICE.name
pytestmark = pytest.mark.skipif(GPU is None, reason="no GPU, or not built for the one there is")


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "qwen3_moe", "deepseek_v3"])
def test_tokens_are_those_of_the_cpu(architecture, tmp_path):
    save_model(tmp_path, architecture, seed=7)
    outcomes = []
    for name in ("cpu", GPU):
        engine = tiny_engine(tmp_path, device_type=name, allow_reference_ops=True, seed=5)
        assert engine.ready.device == name
        for number in range(6):
            engine.add(random_prompt(20 + 30 * number), max_tokens=24, ignore_eos=True)
        engine.add(random_prompt(40), n=2, temperature=0.8, top_k=20, max_tokens=16)
        engine.add(random_prompt(50), repetition_penalty=1.4, logit_bias={3: 1.0}, max_tokens=16)
        engine.run()
        engine.assert_all_free()
        outcomes.append({key: outcome.tokens for key, outcome in engine.outcomes.items()})
    assert outcomes[0] == outcomes[1]


def test_beams_are_those_of_the_cpu(tmp_path):
    save_model(tmp_path, "llama", seed=7, eos_token_id=2)
    rules = [{}, {"repetition_penalty": 1.4}, {"logit_bias": {3: 2.0}, "min_tokens": 6}]
    found = []
    for name in ("cpu", GPU):
        engine = tiny_engine(tmp_path, device_type=name, allow_reference_ops=True)
        for number, each in enumerate([*rules, {"no_repeat_ngram_size": 2}]):
            inputs = {"beam_search": BeamSearch()}
            engine.add(random_prompt(20 + 9 * number), n=4, max_tokens=12, inputs=inputs, **each)
        engine.run()
        engine.assert_all_free()
        found.append({key: outcome.tokens for key, outcome in engine.outcomes.items()})
    assert found[0] == found[1]


def test_logprobs_are_those_of_the_cpu(tmp_path):
    save_model(tmp_path, "qwen3", seed=7)
    scores = []
    for name in ("cpu", GPU):
        engine = tiny_engine(tmp_path, device_type=name, allow_reference_ops=True)
        request_id = engine.add(random_prompt(30), logprobs=2, prompt_logprobs=2, max_tokens=8)
        engine.run()
        outcome = engine.outcomes[request_id, 0]
        prompt = [outcome.prompt_logprobs[place] for place in sorted(outcome.prompt_logprobs)]
        scores.append([entry.logprob for entry in (*prompt, *outcome.logprobs)])
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_a_kv_cache_of_eight_bits_gives_nearly_the_same(tmp_path):
    device = resolve_device(GPU)
    if (
        not device.supports("quantized_kv_cache")
        or "float8_conversion" not in device.capabilities()
    ):
        pytest.skip("no 8-bit floats on this device")
    save_model(tmp_path, "qwen3", seed=7)
    scores = {}
    for kind in ("auto", "fp8_e4m3"):
        engine = tiny_engine(tmp_path, device_type=GPU, dtype="bfloat16", kv_cache_dtype=kind)
        ids = [
            engine.add(random_prompt(length), prompt_logprobs=1, max_tokens=8, ignore_eos=True)
            for length in (3, 40, 150)
        ]
        engine.run()
        engine.assert_all_free()
        prompts = [engine.outcomes[request_id, 0].prompt_logprobs for request_id in ids]
        scores[kind] = [scored[place].logprob for scored in prompts for place in sorted(scored)]
    exact, small = (torch.tensor(scores[kind]) for kind in ("auto", "fp8_e4m3"))
    assert not torch.equal(exact, small)  # or the setting did nothing
    # Rounding keys and values on the CPU changes these log-probabilities by 0.05 of their spread.
    assert (exact - small).abs().mean() < 0.1 * exact.std()


def run_mixed(engine):
    """Prompts of all short lengths, alone and among sequences that decode."""
    for length in (1, 7, 16, 17, 40, 100, 180, 230):
        engine.add(random_prompt(length), max_tokens=12, ignore_eos=True)
        engine.step()
    engine.run()
    for length in (5, 60):
        engine.tokens(random_prompt(length), max_tokens=8, ignore_eos=True)
    engine.assert_all_free()
    return {key: outcome.tokens for key, outcome in engine.outcomes.items()}


@pytest.mark.parametrize("architecture", ["qwen3", "mistral"])
def test_captured_steps_give_the_tokens_of_eager_ones(architecture, tmp_path):
    if not DEVICE.supports("graph_capture"):
        pytest.skip("no graphs on this device")
    save_model(tmp_path, architecture, seed=7)
    outcomes = []
    for graphs, idle in ((False, False), (True, False), (True, True)):
        made = tiny_engine(tmp_path, device_type=GPU, enable_graphs=graphs, max_running_requests=12)
        while idle and made.engine.has_idle_work:
            made.engine.work_idle()
        outcomes.append(run_mixed(made))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.parametrize("overlap", [False, True])
def test_captured_steps_that_verify_drafts_give_the_plain_tokens(overlap, tmp_path):
    if not DEVICE.supports("graph_capture"):
        pytest.skip("no graphs on this device")
    save_model(tmp_path, "qwen3", seed=7)
    outcomes = []
    drafts = {"speculative": "ngram", "num_speculative_tokens": 3, "enable_overlap": overlap}
    for settings in ({}, {**drafts, "enable_graphs": False}, drafts):
        made = tiny_engine(tmp_path, device_type=GPU, max_running_requests=12, **settings)
        while made.engine.has_idle_work:
            made.engine.work_idle()
        for number in range(8):
            prompt = random_prompt(5, seed=number) * 6  # which n-grams find again
            made.add(prompt, max_tokens=40, ignore_eos=True)
            made.step()
        made.run()
        made.assert_all_free()
        outcomes.append({key: outcome.tokens for key, outcome in made.outcomes.items()})
        accepted = sum(outcome.accepted_drafts for outcome in made.outcomes.values())
        assert (accepted > 0) is bool(settings)
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_captured_prompts_score_as_eager_ones(tmp_path):
    """In bfloat16 and with heads of 64, which the kernels for tensor cores take."""
    if not DEVICE.supports("graph_capture"):
        pytest.skip("no graphs on this device")
    save_model(tmp_path, "qwen3", seed=7, head_dim=64)
    scores = []
    for graphs in (False, True):
        engine = tiny_engine(
            tmp_path, device_type=GPU, dtype="bfloat16", enable_graphs=graphs, reuse_cache=False
        )
        while engine.engine.has_idle_work:
            engine.engine.work_idle()
        ids = []
        for lengths in ((3,), (40,), (150,), (20, 7, 90, 17)):
            ids += [
                engine.add(random_prompt(length, seed=length), prompt_logprobs=1, max_tokens=4)
                for length in lengths
            ]
            engine.run()
        prompts = [engine.outcomes[request_id, 0].prompt_logprobs for request_id in ids]
        scores.append(
            torch.tensor([scored[place].logprob for scored in prompts for place in sorted(scored)])
        )
    eager, captured = scores
    assert len(eager) == 3 + 40 + 150 + 20 + 7 + 90 + 17 - 7
    # A padded product may round otherwise; a token of another sequence would change everything.
    assert (eager - captured).abs().mean() < 0.05 * eager.std()


def test_the_cache_takes_the_free_memory_but_the_reserve(tmp_path, monkeypatch):
    save_model(tmp_path, "qwen3", seed=7)
    device = resolve_device(GPU)
    # Other tests run on the same device meanwhile: what is free is made up, what steps take is not.
    info = MemoryInfo(free=3 * 2**30, total=16 * 2**30)
    monkeypatch.setattr(device, "memory_info", lambda: info)
    engine = tiny_engine(
        tmp_path,
        device_type=GPU,
        kv_cache_mem_mb=None,
        reserve_runtime_mem_mb=2560,
        max_running_requests=8,
        max_batch_tokens_size=256,
    )
    ready = engine.ready
    block = ready.kv_cache_bytes // ready.num_blocks
    assert ready.num_blocks == 512 * 2**20 // block
    assert len(engine.tokens(random_prompt(30), max_tokens=4, ignore_eos=True)) == 4


def test_what_does_not_fit_is_refused_with_the_numbers(tmp_path):
    from rtp_llm.worker.cache.budget import CacheSizeError

    save_model(tmp_path, "qwen3", seed=7)
    total = DEVICE.memory_info().total // 2**20
    with pytest.raises(CacheSizeError, match=f"kv_cache_mem_mb={total} does not fit: .* set at"):
        tiny_engine(tmp_path, device_type=GPU, kv_cache_mem_mb=total)
    with pytest.raises(CacheSizeError, match="reserve_runtime_mem_mb"):
        tiny_engine(
            tmp_path, device_type=GPU, kv_cache_mem_mb=None, reserve_runtime_mem_mb=2 * total
        )
