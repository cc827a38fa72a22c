# SPDX-License-Identifier: Apache-2.0
"""FP8 checkpoints with scales of channels or tensors against transformers with their values."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from rtp_llm import ops
from rtp_llm.device import resolve_device
from rtp_llm.layers.linear.base import PlainLinear
from rtp_llm.layers.linear.fp8_channel import Fp8ChannelLinear
from rtp_llm.loader import explain
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu
from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.fp8_checkpoints import (
    CHANNELS,
    FBGEMM,
    HF_TENSORS,
    TENSORS,
    store_as_fp8,
)
from rtp_llm.testing.models.open_model import model_settings, open_model
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
STYLES = {"channels": CHANNELS, "tensors": TENSORS, "hf": HF_TENSORS, "fbgemm": FBGEMM}
DENSE = ("llama", {"hidden_size": 160, "intermediate_size": 208, "attention_bias": True})
MIXTURE = ("qwen3_moe", {"hidden_size": 160, "moe_intermediate_size": 144})
# Queries and gates of a head, or parts of several projections, share a tensor and its one scale.
HYBRID = ("qwen3_next", {})
CASES = [
    ("channels", *DENSE),
    ("hf", *DENSE),
    ("fbgemm", *DENSE),
    ("tensors", *MIXTURE),
    ("hf", "mixtral", {"hidden_size": 160}),
    ("tensors", *HYBRID),
]


def make(folder, style, kind, settings, **stored):
    """The folders of a model in FP8 and of the same one without."""
    (folder / "fp8").mkdir()
    save_model(folder / "fp8", kind, seed=3, **settings)
    if kind == "mixtral":
        stored["converts"] = lambda name: projections(name) or ".experts." in name
    return folder / "fp8", store_as_fp8(folder / "fp8", style=STYLES[style], **stored)


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
    ops.allow_reference_ops(True)
    yield
    ops.allow_reference_ops(False)


@pytest.mark.parametrize(("style", "kind", "settings"), CASES, ids=str)
def test_logits_and_tokens_are_those_of_transformers(tmp_path, style, kind, settings):
    stored, wide = make(tmp_path, style, kind, settings)
    theirs, model = reference(wide), open_model(stored)
    prompt, tokens = clear_prompt(theirs, 24, 8)
    torch.testing.assert_close(logits(model, prompt), expected_logits(theirs, prompt), **TOLERANCE)
    assert ContiguousRunner(model, 1, 128).greedy(prompt, 8, 16) == tokens


@pytest.mark.parametrize("style", ["channels", "hf"])
def test_with_products_only_activations_are_rounded_more(tmp_path, style, fp8_products):
    stored, wide = make(tmp_path, style, *DENSE, dtype=torch.bfloat16)
    model = open_model(stored, torch.bfloat16)
    layer = model.model.layers[1]
    assert type(layer.self_attn.qkv_proj) is type(layer.mlp.down_proj) is Fp8ChannelLinear
    prompt = random_prompt(40)
    exact = expected_logits(reference(wide), prompt)
    noise = (logits_with_rounded_activations(wide, prompt) - exact).square().mean().sqrt()
    for chunk in (None, 7):
        found = logits(model, prompt, chunk)
        assert 0.5 * noise < (found - exact).square().mean().sqrt() < 1.5 * noise


def logits_with_rounded_activations(folder, prompt):
    """transformers with the products' formula in its linear layers."""
    model = reference(folder)

    def round_input(module, args):
        (x,) = args
        numbers, scales = ops.fp8_quantize_tokens(x[0].contiguous())
        return ((numbers.float() * scales)[None],)

    for name, module in model.named_modules():
        if name.endswith("proj"):
            module.register_forward_pre_hook(round_input)
    return expected_logits(model, prompt)


def test_mixtures_with_products_stay_near_the_floats(tmp_path, fp8_products):
    stored, wide = make(tmp_path, "channels", *MIXTURE, dtype=torch.bfloat16)
    model = open_model(stored, torch.bfloat16)
    block = model.model.layers[-1].mlp
    assert block.executor.name == "fp8_channel"
    assert block.experts.down.weight.dtype is torch.float8_e4m3fn
    prompt = random_prompt(40)
    exact = expected_logits(reference(wide), prompt)
    plain = logits(open_model(wide, torch.bfloat16), prompt)
    error = (logits(model, prompt) - exact).norm() / exact.norm()
    # Rounded activations choose other experts here and there, as bfloat16's alone do.
    assert (plain - exact).norm() / exact.norm() < error < 0.4


def test_parts_keep_their_own_scales(tmp_path, fp8_products):
    """Nothing is quantised again where q, k and v of a fused layer have different scales."""
    stored, _ = make(tmp_path, "hf", *DENSE)
    files = load_file(stored / "model.safetensors")
    layer = open_model(stored, torch.bfloat16).model.layers[0].self_attn.qkv_proj
    parts = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    numbers = torch.cat([files[f"{part}.weight"].view(torch.uint8) for part in parts])
    assert torch.equal(layer.weight.view(torch.uint8), numbers)
    scales = torch.cat(
        [files[f"{part}.weight_scale"].expand(len(files[f"{part}.weight"]), 1) for part in parts]
    )
    assert torch.equal(layer.scale, scales) and len(scales.unique()) == 3


def test_ignored_modules_stay_as_they_are(tmp_path, fp8_products):
    left = ("layers.1.mlp.down_proj", "layers.0.self_attn.k_proj")
    stored, wide = make(
        tmp_path,
        "channels",
        *DENSE,
        converts=lambda name: projections(name) and not any(part in name for part in left),
    )
    model = open_model(stored, torch.bfloat16)
    first, second = model.model.layers[:2]
    for layer in (second.mlp.down_proj, first.self_attn.qkv_proj):  # one part makes all floats
        assert type(layer) is PlainLinear
    assert type(first.mlp.down_proj) is Fp8ChannelLinear
    exact = open_model(wide, torch.bfloat16)
    for place in ("layers.1.mlp.down_proj.weight", "layers.0.self_attn.qkv_proj.weight"):
        ours, theirs = (m.model.get_parameter(place) for m in (model, exact))
        assert torch.equal(ours, theirs), place


def test_an_ignored_module_in_fp8_is_refused(tmp_path):
    stored, _ = make(tmp_path, "channels", *DENSE)
    config = json.loads((stored / "config.json").read_text())
    config["quantization_config"]["ignore"].append(r"re:.*layers\.1\.mlp\.down_proj")
    (stored / "config.json").write_text(json.dumps(config))
    message = r"1\.mlp\.down_proj\.weight: float8_e4m3fn, but config\.json excludes the module"
    with pytest.raises(UnsupportedModelError, match=message):
        open_model(stored)


def test_what_cannot_be_made_is_refused(tmp_path, fp8_products):
    stored, _ = make(tmp_path, "channels", *DENSE)
    with pytest.raises(UnsupportedModelError, match=r"dummy weights in this .*FP8 channels"):
        open_model(stored, torch.bfloat16, load_format="dummy")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    save_model(mixed, DENSE[0], seed=3, **DENSE[1])
    keeps = "layers.0.self_attn.k_proj"
    store_as_fp8(mixed, lambda name: projections(name) and keeps not in name, style=CHANNELS)
    message = "stored formats that do not go together .*stored as float and fp8_channel"
    with pytest.raises(UnsupportedModelError, match=message):
        open_model(mixed, torch.bfloat16, quantization="fp8")


def test_the_explanation_says_what_becomes_of_them(tmp_path, monkeypatch):
    stored, _ = make(tmp_path, "tensors", *DENSE)
    device, settings = resolve_device("cpu"), model_settings(torch.bfloat16)
    text = explain(stored, device=device, settings=settings)
    assert "MiB of FP8 tensors become" in text and "no kernels for FP8 products" in text
    assert "stored scales of activations are not used: each token gets its own" in text
    multiply_fp8_on_cpu(monkeypatch.setattr)
    assert "MiB of FP8 tensors as they are" in explain(stored, device=device, settings=settings)
