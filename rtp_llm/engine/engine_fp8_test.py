# SPDX-License-Identifier: Apache-2.0
"""FP8 checkpoints through the whole engine on the CPU: as floats, and where FP8 is multiplied."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from rtp_llm.device import DeviceError
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu
from rtp_llm.testing.models.fp8_checkpoints import store_as_fp8
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

PROMPTS = [random_prompt(length, seed=length) for length in (5, 17, 50)]


@pytest.fixture
def folders(tmp_path):
    """A model in FP8 blocks, and with the weights that these stand for in bfloat16."""
    (tmp_path / "fp8").mkdir()
    sizes = {"hidden_size": 256, "intermediate_size": 384}
    save_model(tmp_path / "fp8", "qwen3", seed=7, **sizes)
    return tmp_path / "fp8", store_as_fp8(tmp_path / "fp8", dtype=torch.bfloat16)


def answers(engine):
    request_ids = [engine.add(prompt, max_tokens=24, ignore_eos=True) for prompt in PROMPTS]
    engine.run()
    engine.assert_all_free()
    return [engine.outcomes[request_id, 0].tokens for request_id in request_ids]


def test_as_floats_tokens_and_memory_are_those_of_floats(folders):
    stored, wide = (TinyEngine(folder, dtype="bfloat16") for folder in folders)
    assert stored.ready.quantization == wide.ready.quantization == "none"
    assert stored.ready.weight_bytes == wide.ready.weight_bytes
    assert answers(stored) == answers(wide)


def test_where_it_is_multiplied_a_weight_takes_a_byte(folders, monkeypatch):
    multiply_fp8_on_cpu(monkeypatch.setattr)
    engine = TinyEngine(folders[0], dtype="bfloat16")
    assert engine.ready.quantization == "fp8"
    files = load_file(folders[0] / "model.safetensors").values()
    rotary = engine.built.worker.runner.model.model.rotary.cos_sin.nbytes
    assert engine.ready.weight_bytes == sum(tensor.nbytes for tensor in files) + rotary
    assert [len(tokens) for tokens in answers(engine)] == [24] * len(PROMPTS)
    made = TinyEngine(folders[1], dtype="bfloat16", quantization="fp8")
    assert made.ready.weight_bytes == engine.ready.weight_bytes


@pytest.mark.parametrize(("target", "kept"), [(0, "fp8"), (1, "none")])
def test_what_drafts_does_not_say_how_the_model_is_kept(folders, target, kept, monkeypatch):
    multiply_fp8_on_cpu(monkeypatch.setattr)
    drafting = {"speculative": "draft-model", "speculative_model": str(folders[1 - target])}
    engine = TinyEngine(folders[target], dtype="bfloat16", **drafting)
    assert engine.ready.quantization == kept
    dtypes = {each.dtype for each in engine.built.worker.runner.model.parameters()}
    assert torch.float8_e4m3fn in dtypes


def test_quantising_where_nothing_multiplies_it_is_refused(folders):
    with pytest.raises(DeviceError, match=r"fp8_products .* on cpu: There are no kernels for FP8"):
        TinyEngine(folders[1], dtype="bfloat16", quantization="fp8")
