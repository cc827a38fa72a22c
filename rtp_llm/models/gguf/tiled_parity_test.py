# SPDX-License-Identifier: Apache-2.0
"""GGUF models whose blocks are repacked in tiles, as on NVIDIA GPUs, by the references."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm import ops
from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.engine.start import memory_estimate
from rtp_llm.engine.start.memory_plan import weight_bytes
from rtp_llm.layers.linear.tiled_stored import TiledStoredLinear
from rtp_llm.layers.tiled_matrix import TiledGgufMatrix
from rtp_llm.loader import explain
from rtp_llm.testing.gguf.models import save_gguf
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import model_settings, open_model
from rtp_llm.testing.models.transformers_models import expected_logits, random_prompt, save_model

torch.set_num_threads(2)

# 320 tokens are whole tiles.
WIDE = {"num_hidden_layers": 2, "num_attention_heads": 16, "head_dim": 16, "vocab_size": 320}
WIDE |= {"intermediate_size": 256}
Q4_K_M = {"": "Q4_K", "blk.0.attn_v.weight": "Q6_K", "blk.1.ffn_down.weight": "Q6_K"}
Q4_K_M |= {"output.weight": "Q6_K", "blk.1.attn_k.weight": "F16"}
OTHERS = {"": "Q5_K", "blk.0.ffn_up.weight": "Q2_K", "blk.1.ffn_down.weight": "IQ4_NL"}
OTHERS |= {"token_embd.weight": "Q5_0", "output.weight": "Q4_1", "blk.1.attn_q.weight": "Q5_1"}
MODELS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "llama": ("llama", Q4_K_M, {"attention_bias": True}),
    "qwen2": ("qwen2", OTHERS, {}),
    "qwen3": ("qwen3", "Q8_0", {"tie_word_embeddings": True}),
}


@pytest.fixture(autouse=True)
def tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the device had the kernels of tiles, and none for blocks as they are."""
    has_kernel = ops.has_kernel

    def pretended(name: str, device_type: str) -> bool:
        tiled = name.startswith("tiled_wna16")
        return tiled or (not name.startswith("gguf") and has_kernel(name, device_type))

    monkeypatch.setattr(ops, "has_kernel", pretended)
    ops.allow_reference_ops(True)
    yield
    ops.allow_reference_ops(False)


def save(folder: Path, name: str) -> tuple[Path, Any]:
    architecture, kinds, own = MODELS[name]
    model = save_model(folder, name, **{**WIDE, **own})
    return save_gguf(folder / "tiny.gguf", model, architecture, kinds)[0], model


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_logits_are_those_of_the_weights_of_blocks(tmp_path: Path, name: str) -> None:
    """No further away than transformers in bfloat16, give or take; scales are rounded, too."""
    file, reference = save(tmp_path, name)
    prompt = random_prompt(53)
    model = open_model(file, torch.bfloat16)
    found = ContiguousRunner(model, 1, 64).prefill(prompt)
    exact = expected_logits(reference, prompt)
    theirs = (expected_logits(reference.bfloat16(), prompt) - exact).square().mean().sqrt()
    ours = (found - exact).square().mean().sqrt()
    assert 0 < ours < 1.3 * theirs
    step = ContiguousRunner(model, 1, 64).prefill(prompt, 40)
    assert (step - exact).square().mean().sqrt() < 1.3 * theirs


def test_what_stays_integers_and_what_becomes_floats(tmp_path: Path) -> None:
    file, _ = save(tmp_path, "llama")
    model = open_model(file, torch.bfloat16)
    layers = model.model.layers
    kinds = [
        [type(each).__name__ for each in layer.self_attn.qkv_proj.matrices] for layer in layers
    ]
    tiles = TiledGgufMatrix.__name__
    assert kinds == [[tiles, tiles], [tiles, "FloatMatrix", tiles]]
    assert isinstance(layers[0].mlp.gate_up_proj, TiledStoredLinear)
    assert layers[0].mlp.gate_up_proj.fused() is not None
    assert isinstance(model.model.embed_tokens.matrix, TiledGgufMatrix)
    assert [each.mlp.down_proj.matrices[0].bits for each in layers] == [4, 6]
    assert model.lm_head.product.fused().weight.shape[2] == 6 * 128


def test_explain_says_what_becomes_of_each_type(tmp_path: Path) -> None:
    file, _ = save(tmp_path, "qwen2")
    device = resolve_device("cpu")
    text = explain(file, device=device, settings=model_settings(torch.bfloat16))
    assert " of GGUF Q5_K as they are (" in text and " MiB in memory)" in text
    assert "of GGUF Q2_K become" in text
    assert "while loading: no kernel for GPUs multiplies this type" in text
    text = explain(file, device=device, settings=model_settings(torch.float16))
    assert "GGUF Q5_K become" in text and "GPUs multiply it with activations in bfloat16" in text


def test_weights_that_fill_no_tiles_count_as_floats(tmp_path: Path) -> None:
    """Of 576 columns, as SmolLM's; its down projections have other columns, and so are tiles."""
    sizes = {**WIDE, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
    reference = save_model(tmp_path, "llama", **{**sizes, "head_dim": 64})
    file = save_gguf(tmp_path / "tiny.gguf", reference, "llama", "Q8_0")[0]
    model, device = open_model(file, torch.bfloat16), resolve_device("cpu")
    layer = model.model.layers[0]
    assert type(layer.mlp.gate_up_proj.matrices[0]).__name__ == "FloatMatrix"
    assert isinstance(layer.mlp.down_proj.matrices[0], TiledGgufMatrix)
    lines = explain(file, device=device, settings=model_settings(torch.bfloat16))
    assert "while loading: its rows or columns do not fill tiles" in lines
    assert " MiB of GGUF Q8_0 as they are" in lines, "down projections"
    assert re.search(r"  attention: [0-9.]+ MiB of GGUF Q8_0 as bfloat16", lines)
    counted = memory_estimate._weight_bytes(
        Settings(model=str(file), dtype="bfloat16"), torch.bfloat16, device
    )
    assert counted == pytest.approx(weight_bytes(model), rel=0.02, abs=67_000)  # of rotations
