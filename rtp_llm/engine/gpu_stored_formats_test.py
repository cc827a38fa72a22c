# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the formats of other makers on a GPU; skipped without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.layers.linear.int4 import TiledInt4Linear
from rtp_llm.layers.linear.int8 import Int8Linear, W8A8Int8Linear
from rtp_llm.layers.linear.tiled_stored import TiledStoredLinear
from rtp_llm.layers.tiled_matrix import TiledGgufMatrix
from rtp_llm.loader import explain
from rtp_llm.quantization.int4 import dequantize_rows, quantize_rows
from rtp_llm.testing.gguf.bert import save_bert_gguf
from rtp_llm.testing.gguf.models import save_gguf
from rtp_llm.testing.models.encoder_models import expected_states, save_encoder
from rtp_llm.testing.models.open_model import model_settings, open_model
from rtp_llm.testing.models.stored_checkpoints import PACKINGS, store_packed
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpu

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")

DEVICE = usable_gpu("cuda")
pytestmark = pytest.mark.skipif(DEVICE is None, reason="no NVIDIA GPU")

Q4_K_M = {"": "Q4_K", "blk.0.attn_v.weight": "Q6_K", "output.weight": "Q6_K"}
GGUF = (Q4_K_M, "Q5_K", "Q8_0", "Q4_0")
DENSE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
SIZES = {"qwen3": DENSE, "qwen3_moe": {**DENSE, "moe_intermediate_size": 64}}
FLOATS = ("nf4", "nested nf4", "mlx")
INT8 = {
    "w8a8": W8A8Int8Linear,
    "w8a8 static": W8A8Int8Linear,
    "w8a16": Int8Linear,
    "bitsandbytes int8": Int8Linear,
}


def make(folder: Path, packing: str, kind: str) -> tuple[Path, Path]:
    """The model in a format, and as floats."""
    (folder / "stored").mkdir()
    save_model(folder / "stored", kind, seed=3, **SIZES[kind])
    return folder / "stored", store_packed(
        folder / "stored", PACKINGS[packing], dtype=torch.bfloat16
    )


def scores(folder: Path, **settings: Any) -> torch.Tensor:
    """Log-probabilities of a prompt's tokens."""
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    engine = TinyEngine(folder, device_type="cuda", dtype="bfloat16", reuse_cache=False, **settings)
    number = engine.add(random_prompt(150), prompt_logprobs=1, max_tokens=4)
    engine.run()
    scored = engine.outcomes[number, 0].prompt_logprobs
    return torch.tensor([scored[place].logprob for place in sorted(scored)])


@pytest.mark.parametrize("packing", FLOATS)
def test_floats_are_the_values_of_the_file(tmp_path: Path, packing: str) -> None:
    stored, wide = (
        open_model(folder, torch.bfloat16, device=DEVICE).state_dict()
        for folder in make(tmp_path, packing, "qwen3_moe")
    )
    assert stored.keys() == wide.keys()
    assert [name for name in stored if not torch.equal(stored[name], wide[name])] == []


def test_four_bits_while_loading(tmp_path: Path) -> None:
    """Log-probabilities are those of the weights that they were rounded to."""
    reference = save_model(tmp_path, "qwen3", seed=3, **DENSE, vocab_size=320)
    model = open_model(tmp_path, torch.bfloat16, device=DEVICE, quantization="int4")
    kinds = {type(layer.mlp.down_proj) for layer in model.model.layers}
    assert {*kinds, type(model.lm_head.product)} == {TiledInt4Linear}
    assert model.lm_head.product.products[0].weight.dtype is torch.int8
    found, exact = scores(tmp_path, quantization="int4"), scores(tmp_path)
    with torch.no_grad():
        for module in reference.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(dequantize_rows(*quantize_rows(module.weight)))
    reference.save_pretrained(tmp_path)
    rounded = scores(tmp_path)
    error, moved = ((rounded - each).norm() / rounded.norm() for each in (found, exact))
    print(f"error {error:.3g}, rounding {moved:.3g}")
    assert error < 0.02 < moved


@pytest.mark.parametrize("kinds", GGUF, ids=["Q4_K_M", "Q5_K", "Q8_0", "Q4_0"])
def test_blocks_of_gguf_stay_integers(tmp_path: Path, kinds: Any) -> None:
    """Log-probabilities are those of the weights of the blocks; embedding and head are tiled."""
    tied = kinds == "Q8_0"
    sizes = {**DENSE, "vocab_size": 320, "tie_word_embeddings": tied, "num_attention_heads": 4}
    reference = save_model(tmp_path, "qwen3", seed=3, **sizes)
    file = save_gguf(tmp_path / "tiny.gguf", reference, "qwen3", kinds)[0]
    model = open_model(file, torch.bfloat16, device=DEVICE)
    assert isinstance(model.model.embed_tokens.matrix, TiledGgufMatrix)
    assert isinstance(model.model.layers[0].mlp.gate_up_proj, TiledStoredLinear)
    said = explain(file, device=DEVICE, settings=model_settings(torch.bfloat16))
    assert "as they are" in said and "become" not in said
    reference.bfloat16().save_pretrained(tmp_path)
    exact = scores(tmp_path)
    for settings in ({}, {"enable_graphs": False}):
        found = scores(file, **settings)
        error = float((found - exact).norm() / exact.norm())
        print(f"{kinds}: error {error:.3g}")
        assert error < 0.02


def test_value_heads_that_cut_blocks_of_gguf(tmp_path: Path) -> None:
    """Two heads of 64 share each block: it stays, and what is projected takes on its order."""
    sizes = {**DENSE, "vocab_size": 320, "num_attention_heads": 4, "linear_value_head_dim": 64}
    reference = save_model(tmp_path, "qwen3_5", seed=3, **sizes)
    file = save_gguf(tmp_path / "tiny.gguf", reference, "qwen35", "Q4_K")[0]
    net = open_model(file, torch.bfloat16, device=DEVICE).model.layers[0].linear_attn
    assert net.keeps_tiles and isinstance(net.out_proj, TiledStoredLinear)
    reference.bfloat16().save_pretrained(tmp_path)
    exact, found = scores(tmp_path), scores(file)
    error = float((found - exact).norm() / exact.norm())
    print(f"error {error:.3g}")
    assert error < 0.03


def test_an_encoder_in_a_gguf_file(tmp_path: Path) -> None:
    """Linear layers are tiled, embeddings are floats."""
    from rtp_llm.request.params import PoolingParams
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512}
    reference = save_encoder(tmp_path, "bert", **sizes)
    file = save_bert_gguf(tmp_path / "tiny.gguf", reference, "Q4_K")
    model = open_model(file, torch.bfloat16, device=DEVICE)
    assert isinstance(model.model.layers[0].up, TiledStoredLinear)
    engine = TinyEngine(file, device_type="cuda", dtype="bfloat16", kv_cache_mem_mb=None)
    params = PoolingParams(pooling_type="mean", normalize=False)
    prompts = [random_prompt(length, seed=length) for length in (1, 17, 300)]
    requests = [engine.add_request(prompt, params) for prompt in prompts]
    engine.run()
    for request, prompt in zip(requests, prompts, strict=True):
        found = torch.tensor(engine.outcomes[request, 0].pooled)
        wanted = expected_states(reference, prompt).mean(0)
        assert torch.cosine_similarity(found, wanted, dim=0) > 0.995


@pytest.mark.parametrize("packing", ["mxfp4", "nvfp4", "modelopt nvfp4"])
def test_fp4_stays_integers(tmp_path: Path, packing: str) -> None:
    stored, wide = make(tmp_path, packing, "qwen3")
    model = open_model(stored, torch.bfloat16, device=DEVICE)
    layer = model.model.layers[1].mlp.down_proj
    assert isinstance(layer, TiledStoredLinear) and layer.fused() is not None
    exact = scores(wide)
    error = float((scores(stored) - exact).norm() / exact.norm())
    print(f"{packing}: error {error:.3g}")
    assert error < 0.02


@pytest.mark.parametrize("packing", INT8)
def test_int8_stays_int8(tmp_path: Path, packing: str) -> None:
    stored, wide = make(tmp_path, packing, "qwen3")
    model = open_model(stored, torch.bfloat16, device=DEVICE)
    assert type(model.model.layers[1].mlp.down_proj) is INT8[packing]
    exact = scores(wide)
    error = float((scores(stored) - exact).norm() / exact.norm())
    print(f"{packing}: error {error:.3g}")
    assert error < 0.1
