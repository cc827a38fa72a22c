# SPDX-License-Identifier: Apache-2.0
"""FP8 checkpoints against transformers, which runs the weights that the blocks stand for."""

from __future__ import annotations

import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm import ops
from rtp_llm.layers.linear.base import PlainLinear
from rtp_llm.layers.linear.fp8 import Fp8Linear
from rtp_llm.loader import staging
from rtp_llm.quantization.fp8 import dequantize_rows, quantize_blocks
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu
from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.fp8_checkpoints import store_as_fp8
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.stored_checkpoints import projections
from rtp_llm.testing.models.transformers_models import (
    clear_prompt,
    expected_logits,
    random_prompt,
    save_model,
)

with light_transformers():
    from transformers import AutoModelForCausalLM

torch.set_num_threads(2)

TOLERANCE = {"rtol": 1e-4, "atol": 2e-4}
MODELS = [
    # Whole blocks; parts and columns that are none; a tied head.
    ("qwen3", {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}),
    ("llama", {"hidden_size": 160, "intermediate_size": 200, "attention_bias": True}),
    ("qwen2", {"hidden_size": 128, "intermediate_size": 256, "tie_word_embeddings": True}),
    ("qwen3_moe", {"hidden_size": 160, "moe_intermediate_size": 144}),
    ("deepseek_v3", {"hidden_size": 160, "q_lora_rank": 72, "kv_lora_rank": 40}),
]
KINDS = [kind for kind, _ in MODELS]
every_model = pytest.mark.parametrize(("kind", "settings"), MODELS, ids=KINDS)
every_dense_model = pytest.mark.parametrize(("kind", "settings"), MODELS[:3], ids=KINDS[:3])
every_mixture = pytest.mark.parametrize(("kind", "settings"), MODELS[3:], ids=KINDS[3:])


def make(folder, kind, settings, **stored):
    """The folders of a model in FP8 and of the same one without."""
    (folder / "fp8").mkdir()
    save_model(folder / "fp8", kind, seed=3, **settings)
    return folder / "fp8", store_as_fp8(folder / "fp8", **stored)


def reference(folder):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    model.generation_config.eos_token_id = None
    return model.eval()


def logits(model, prompt, chunk=None):
    return ContiguousRunner(model, 1, 128).prefill(prompt, chunk)


@pytest.fixture
def fp8_products(monkeypatch):
    multiply_fp8_on_cpu(monkeypatch.setattr)


@every_model
def test_logits_and_tokens_are_those_of_transformers(tmp_path, kind, settings, caplog):
    caplog.set_level(logging.WARNING)
    stored, wide = make(tmp_path, kind, settings)
    theirs, model = reference(wide), open_model(stored)
    prompt, tokens = clear_prompt(theirs, 53, 32)
    torch.testing.assert_close(logits(model, prompt), expected_logits(theirs, prompt), **TOLERANCE)
    assert ContiguousRunner(model, 1, 128).greedy(prompt, 32, 16) == tokens
    (message,) = [r.getMessage() for r in caplog.records if "FP8" in r.getMessage()]
    numbers = sum(
        t.numel() for n, t in load_file(wide / "model.safetensors").items() if projections(n)
    )
    assert message.startswith(
        f"{numbers / 2**20:.1f} MiB of FP8 blocks become {numbers / 2**18:.1f} MiB of float32"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_sixteen_bits_logits_are_those_of_the_same_floats(tmp_path, dtype):
    stored, wide = make(tmp_path, *MODELS[1], dtype=dtype)
    prompt = random_prompt(40)
    ours, theirs = (logits(open_model(folder, dtype), prompt) for folder in (stored, wide))
    assert torch.equal(ours, theirs)


@every_dense_model
def test_with_products_only_activations_are_rounded_more(tmp_path, kind, settings, fp8_products):
    stored, wide = make(tmp_path, kind, settings, dtype=torch.bfloat16)
    model = open_model(stored, torch.bfloat16)
    assert type(model.model.layers[1].self_attn.qkv_proj) is Fp8Linear
    prompt = random_prompt(40)
    exact = expected_logits(reference(wide), prompt)
    rounded = logits_with_rounded_activations(wide, prompt)
    noise = (rounded - exact).square().mean().sqrt()
    # Which way a number is rounded that lies between two of e4m3 is up to bfloat16's noise.
    for chunk in (None, 7):
        found = logits(model, prompt, chunk)
        assert 0.5 * noise < (found - exact).square().mean().sqrt() < 1.5 * noise


def logits_with_rounded_activations(folder, prompt):
    """transformers with the products' formula in its linear layers."""
    model = reference(folder)

    def round_input(module, args):
        (x,) = args
        numbers, scales = ops.fp8_quantize(x[0].contiguous())
        wide = scales[:, : x.shape[1]].T.repeat_interleave(128, 1)[:, : x.shape[2]]
        return (numbers.float() * wide)[None]

    for name, module in model.named_modules():
        if name.endswith("proj"):
            module.register_forward_pre_hook(round_input)
    return expected_logits(model, prompt)


@every_mixture
def test_mixtures_with_products_stay_near_the_floats(tmp_path, kind, settings, fp8_products):
    stored, wide = make(tmp_path, kind, settings, dtype=torch.bfloat16)
    model = open_model(stored, torch.bfloat16)
    experts = model.model.layers[-1].mlp.experts
    assert experts.gate_up.scale is not None and experts.down.scale is not None
    prompt = random_prompt(40)
    exact, plain = (
        expected_logits(reference(wide), prompt),
        logits(open_model(wide, torch.bfloat16), prompt),
    )
    error = (logits(model, prompt) - exact).norm() / exact.norm()
    # Rounded activations choose other experts here and there, as bfloat16's alone do.
    assert (plain - exact).norm() / exact.norm() < error < 0.4


@pytest.mark.parametrize(("kind", "settings"), MODELS[:4], ids=KINDS[:4])
def test_quantising_while_loading_gives_what_is_stored(
    tmp_path, kind, settings, fp8_products, monkeypatch
):
    folder = tmp_path / "float"
    folder.mkdir()
    save_model(folder, kind, seed=3, **settings)
    weights = load_file(folder / "model.safetensors")
    ready = tmp_path / "ready"
    ready.mkdir()
    save_model(ready, kind, seed=3, **settings)
    store_as_fp8(ready)
    ours = {}
    for name, weight in weights.items():
        if projections(name):
            ours[name], ours[f"{name}_scale_inv"] = quantize_blocks(weight)
        else:
            ours[name] = weight
    save_file(ours, ready / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(staging, "_CACHED_BYTES", 40_000)  # a block's rows at a time
    stored = open_model(ready, torch.bfloat16)
    made = open_model(folder, torch.bfloat16, quantization="fp8")
    again = open_model(ready, torch.bfloat16, quantization="fp8")  # which changes nothing
    for other in (made, again):
        for (name, one), two in zip(
            stored.state_dict().items(), other.state_dict().values(), strict=True
        ):
            assert torch.equal(one.view(torch.uint8), two.view(torch.uint8)), name
    kinds = {type(module) for module in made.modules()}
    assert Fp8Linear in kinds
    assert (PlainLinear in kinds) == (kind != "qwen2")  # the logits' product, unless it is tied


def test_layers_that_were_not_converted_stay_as_they_are(tmp_path, fp8_products):
    left = ("layers.1.mlp.down_proj", "layers.0.self_attn.k_proj")
    stored, wide = make(
        tmp_path,
        *MODELS[0],
        converts=lambda name: projections(name) and not any(part in name for part in left),
    )
    model = open_model(stored, torch.bfloat16)
    first, second, third = model.model.layers
    for layer in (second.mlp.down_proj, first.self_attn.qkv_proj):  # one part makes all floats
        assert type(layer) is PlainLinear
    for layer in (first.mlp.down_proj, second.self_attn.qkv_proj, third.mlp.gate_up_proj):
        assert type(layer) is Fp8Linear
    exact = open_model(wide, torch.bfloat16)
    for place in ("layers.1.mlp.down_proj.weight", "layers.0.self_attn.qkv_proj.weight"):
        ours, theirs = (m.model.get_parameter(place) for m in (model, exact))
        assert torch.equal(ours, theirs), place


def test_random_weights_for_an_fp8_checkpoint(tmp_path, fp8_products):
    stored, _ = make(tmp_path, *MODELS[0])
    (stored / "model.safetensors").unlink()
    model = open_model(stored, torch.bfloat16, load_format="dummy")
    layer = model.model.layers[0].mlp.gate_up_proj
    assert type(layer) is Fp8Linear
    weight = dequantize_rows(layer.weight, layer.scale, 0)
    assert 0.01 < weight.std() < 0.03
    assert type(open_model(stored, load_format="dummy").model.layers[0].mlp.gate_up_proj) is (
        PlainLinear
    )
