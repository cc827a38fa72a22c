# SPDX-License-Identifier: Apache-2.0
"""Models in GGUF files against transformers' with the same weights: logits and greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.device import resolve_device
from rtp_llm.layers import MoeBlock
from rtp_llm.layers.gguf_matrix import GgufMatrix
from rtp_llm.layers.linear.gguf import GgufLinear
from rtp_llm.layers.linear_attention import GatedDeltaNet
from rtp_llm.loader import explain
from rtp_llm.testing.gguf.models import save_gguf
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import model_settings, open_model
from rtp_llm.testing.models.parity import HYBRID_TOLERANCE, TOLERANCE
from rtp_llm.testing.models.transformers_models import (
    clear_prompt,
    expected_logits,
    random_prompt,
    save_model,
)

torch.set_num_threads(2)

TOKENS = 8

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Queries of files are divided by the root of a head's width.
_GEMMA = {"query_pre_attn_scalar": 64}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3": ("llama", "llama", {"rope_parameters": _LLAMA3}),
    "mixtral": ("llama", "mixtral", {}),
    "qwen2": ("qwen2", "qwen2", {"rope_parameters": _YARN}),
    "qwen2moe": ("qwen2moe", "qwen2_moe", {}),
    "qwen3": ("qwen3", "qwen3", {"tie_word_embeddings": True}),
    "qwen3moe": ("qwen3moe", "qwen3_moe", {}),
    "gpt-oss": ("gpt-oss", "gpt_oss", {"intermediate_size": 96}),
    "deepseek2": ("deepseek2", "deepseek_v2", {}),
    "deepseek2 v3": ("deepseek2", "deepseek_v3", {}),
    "qwen3next": ("qwen3next", "qwen3_next", {}),
    "qwen35": ("qwen35", "qwen3_5", {}),
    "qwen35moe": ("qwen35moe", "qwen3_5_moe", {}),
    "gemma2": ("gemma2", "gemma2", _GEMMA),
    "gemma3": ("gemma3", "gemma3", _GEMMA),
    "gemma4": ("gemma4", "gemma4", {"num_hidden_layers": 6}),
    "gemma4 experts": ("gemma4", "gemma4_experts", {}),
}
_HYBRIDS = ("qwen3next", "qwen35", "qwen35moe")
# Rows of whole blocks.
_WIDE = {"num_attention_heads": 16, "head_dim": 16, "intermediate_size": 256}
_PARTS = ("gate", "up", "down")
_Q4_K_M = {"": "Q4_K", "blk.0.attn_v.weight": "Q6_K", "blk.1.ffn_down.weight": "Q6_K"}
_Q4_K_M |= {"output.weight": "Q6_K", "blk.1.attn_k.weight": "F16", "blk.1.attn_v.weight": "BF16"}
_UD = {"": "IQ4_XS", "blk.0.attn_q.weight": "Q5_K", "blk.0.attn_k.weight": "Q8_0"}
_UD |= {"blk.0.attn_v.weight": "Q3_K", "blk.1.ffn_up.weight": "Q2_K", "token_embd.weight": "Q4_1"}
_UD |= {"blk.0.ffn_up.weight": "MXFP4", "blk.1.attn_output.weight": "IQ4_NL"}
_UD |= {"blk.0.ffn_down.weight": "Q5_0", "blk.1.ffn_down.weight": "Q5_1"}

_EXPERTS = {f"blk.{layer}.ffn_{part}_exps.weight": "MXFP4" for layer in range(2) for part in _PARTS}
_LATENTS = {"qk_nope_head_dim": 32, "q_lora_rank": 64, "kv_lora_rank": 64, "v_head_dim": 32}
# Settings besides _WIDE; value heads of 64 are cut by blocks of 256, and not by those of 32.
_OF_BLOCKS: dict[str, dict[str, Any]] = {
    "gemma3": {"query_pre_attn_scalar": 16},
    "gemma4 experts": {"moe_intermediate_size": 64},
    "gpt-oss": {"intermediate_size": 96},
    "deepseek2 v3": {**_LATENTS, "num_key_value_heads": 16, "moe_intermediate_size": 64},
    "qwen3next": {"linear_value_head_dim": 64, "moe_intermediate_size": 64},
    "qwen3moe": {"moe_intermediate_size": 64},
    "qwen35": {"linear_value_head_dim": 64},
}


def _save(folder: Path, name: str, kinds: Any = "F32", **settings: Any) -> tuple[Path, Any]:
    architecture, kind, own = MODELS[name]
    layers = 3 if name in ("gemma3", "gemma4 experts", *_HYBRIDS) else 2
    model = save_model(folder, kind, **{"num_hidden_layers": layers, **own, **settings})
    return save_gguf(folder / "tiny.gguf", model, architecture, kinds)[0], model


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_tokens_of_floats(tmp_path: Path, name: str) -> None:
    file, reference = _save(tmp_path, name)
    prompt, expected = clear_prompt(reference, 53, TOKENS)
    model = open_model(file)
    found = ContiguousRunner(model, 1, 64).prefill(prompt)
    tolerance = HYBRID_TOLERANCE if name in _HYBRIDS else TOLERANCE
    torch.testing.assert_close(found, expected_logits(reference, prompt), **tolerance)
    assert ContiguousRunner(model, 1, 64).greedy(prompt, TOKENS, 16) == expected


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama", _Q4_K_M),
        ("llama 3", _UD),
        ("qwen3", "Q8_0"),
        ("qwen3moe", "Q4_0"),
        ("gemma3", "Q6_K"),
        ("gemma4", {"": "Q4_0", "per_layer_token_embd.weight": "Q5_1"}),
        ("gemma4 experts", "Q8_0"),
        ("gpt-oss", _EXPERTS),
        ("deepseek2 v3", "Q8_0"),
        ("qwen3next", "Q8_0"),
        ("qwen35", "Q4_K"),
        ("qwen35", "Q8_0"),
    ],
)
def test_logits_and_tokens_of_blocks(tmp_path: Path, name: str, kinds: Any) -> None:
    """Fused parts and experts may have types of their own."""
    settings = {**_WIDE, **_OF_BLOCKS.get(name, {})}
    file, reference = _save(tmp_path, name, kinds, **settings)
    prompt = random_prompt(53)
    model = open_model(file, gguf_activations="float")
    kept = [module for module in model.modules() if isinstance(module, GgufMatrix)]
    assert (len(kept) > 4) == (name != "gpt-oss"), "whose experts alone are blocks"
    nets = [module.out_proj for module in model.modules() if isinstance(module, GatedDeltaNet)]
    assert all(isinstance(each, GgufLinear) for each in nets), "also where heads cut blocks"
    found = ContiguousRunner(model, 1, 64).prefill(prompt)
    expected = expected_logits(reference, prompt)
    tolerance = HYBRID_TOLERANCE if name in _HYBRIDS else TOLERANCE
    torch.testing.assert_close(found, expected, **tolerance)
    rounded = ContiguousRunner(open_model(file), 1, 64).prefill(prompt)
    assert torch.nn.functional.cosine_similarity(rounded, expected).median() > 0.99
    assert torch.equal(rounded, found) == (not kept)


def test_experts_stay_in_blocks_of_several_types(tmp_path: Path) -> None:
    """Gate and up of one type or two; those in MXFP4 next to others are no exception."""
    kinds = {"": "Q4_0", "blk.0.ffn_gate_exps.weight": "Q4_K", "blk.0.ffn_up_exps.weight": "Q5_K"}
    kinds |= {f"blk.1.ffn_{part}_exps.weight": "MXFP4" for part in ("gate", "up")}
    kinds |= {"blk.0.ffn_down_exps.weight": "Q6_K"}
    file, reference = _save(tmp_path, "qwen3moe", kinds, **_WIDE, moe_intermediate_size=256)
    model = open_model(file, gguf_activations="float")
    blocks = [module for module in model.modules() if isinstance(module, MoeBlock)]
    assert [block.executor.name for block in blocks] == ["gguf", "gguf"]
    prompt = random_prompt(53)
    found = ContiguousRunner(model, 1, 64).prefill(prompt)
    torch.testing.assert_close(found, expected_logits(reference, prompt), **TOLERANCE)


def test_a_model_in_several_files_is_opened_by_any_of_them(tmp_path: Path) -> None:
    model = save_model(tmp_path, "qwen3", num_hidden_layers=2)
    files = save_gguf(tmp_path / "tiny.gguf", model, "qwen3", "F16", parts=3)
    assert [file.name[5:] for file in files] == [f"0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    prompt = random_prompt(20)
    for file in files[::2]:
        found = ContiguousRunner(open_model(file), 1, 32).prefill(prompt)
        torch.testing.assert_close(found, expected_logits(model, prompt), **TOLERANCE)


def test_explain_says_what_becomes_of_each_type(tmp_path: Path) -> None:
    file, _ = _save(tmp_path, "llama", _Q4_K_M, **_WIDE)
    text = explain(file, device=resolve_device("cpu"), settings=model_settings(torch.bfloat16))
    assert "model: LlamaForCausalLM, 2 layers" in text
    assert "MiB of GGUF Q4_K" in text
    assert "MiB of GGUF Q6_K" in text
