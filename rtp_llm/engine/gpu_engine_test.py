"""The whole engine on a GPU gives the CPU's tokens; skipped without one."""

from __future__ import annotations

import pytest

from rtp_llm.device import DeviceError, resolve_device
from rtp_llm.models.transformers_models_for_tests import random_prompt, save_model


def usable_gpu():
    for name in ("cuda", "rocm", "xpu"):
        try:
            return resolve_device(name).name
        except DeviceError:
            continue
    return None


def tiny_engine(folder, **settings):
    from rtp_llm.engine.tiny_engine_for_tests import TinyEngine

    return TinyEngine(folder, **settings)


# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
GPU = usable_gpu()
pytestmark = pytest.mark.skipif(GPU is None, reason="no GPU, or not built for the one there is")


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
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
