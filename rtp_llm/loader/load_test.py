# SPDX-License-Identifier: Apache-2.0
"""Tests of loading: where weights end up, what is said about wrong ones, how much memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.config.options import SettingsError
from rtp_llm.device import CAPABILITIES, Support, resolve_device
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.loader import CheckpointError, WeightError, explain, load_model, staging
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.testing.loader.small_checkpoints import tensors, write
from rtp_llm.testing.models.open_model import open_model as load

torch.set_num_threads(2)


def check_placement(model, weights, dtype):
    """Every tensor is in its place: fused ones one under the other."""

    def stacked(layer, *names):
        parts = [weights[f"model.layers.{layer}.{name}.weight"] for name in names]
        return torch.cat(parts).to(dtype)

    for index, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        qkv = (f"self_attn.{part}_proj" for part in "qkv")
        assert torch.equal(attention.qkv_proj.weight, stacked(index, *qkv))
        assert torch.equal(attention.o_proj.weight, stacked(index, "self_attn.o_proj"))
        assert torch.equal(attention.q_norm.weight, stacked(index, "self_attn.q_norm"))
        assert torch.equal(attention.k_norm.weight, stacked(index, "self_attn.k_norm"))
        gate_up = stacked(index, "mlp.gate_proj", "mlp.up_proj")
        assert torch.equal(mlp.gate_up_proj.weight, gate_up)
        assert torch.equal(mlp.down_proj.weight, stacked(index, "mlp.down_proj"))
        assert torch.equal(layer.input_layernorm.weight, stacked(index, "input_layernorm"))
    assert torch.equal(
        model.model.embed_tokens.weight, weights["model.embed_tokens.weight"].to(dtype)
    )
    assert torch.equal(model.model.norm.weight, weights["model.norm.weight"].to(dtype))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_end_up_where_they_belong(tmp_path, shards, stored, kept, monkeypatch):
    monkeypatch.setattr(staging, "_CACHED_BYTES", 500)  # a few rows at a time
    weights = tensors(stored)
    model = load(write(tmp_path, weights, shards), kept)
    check_placement(model, weights, kept)
    assert torch.equal(model.lm_head.product.weight, weights["lm_head.weight"].to(kept))
    assert all(parameter.dtype is kept for parameter in model.parameters())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_biases_end_up_where_they_belong(tmp_path):
    weights = {name: w for name, w in tensors().items() if "_norm" not in name}
    for layer in range(2):
        for part, rows in (("q", 30), ("k", 10), ("v", 10)):
            weights[f"model.layers.{layer}.self_attn.{part}_proj.bias"] = torch.randn(rows)
    model = load(write(tmp_path, weights, architectures=["Qwen2ForCausalLM"]))
    parts = [weights[f"model.layers.1.self_attn.{part}_proj.bias"] for part in "qkv"]
    assert torch.equal(model.model.layers[1].self_attn.qkv_proj.bias, torch.cat(parts))
    assert model.model.layers[1].self_attn.o_proj.bias is None


@pytest.mark.parametrize("stored_twice", [True, False])
def test_a_tied_head_is_the_embedding(tmp_path, stored_twice):
    weights = tensors()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    if not stored_twice:
        del weights["lm_head.weight"]
    model = load(write(tmp_path, weights, tie_word_embeddings=True))
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    hidden = torch.randn(2, 24)
    expected = hidden @ weights["model.embed_tokens.weight"].T
    torch.testing.assert_close(model.compute_logits(hidden), expected)


def test_rotary_frequencies_of_old_checkpoints_are_passed_over(tmp_path):
    weights = tensors()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(5)
    check_placement(load(write(tmp_path, weights)), weights, torch.float32)


def test_all_that_is_wrong_is_named_at_once(tmp_path):
    weights = tensors()
    del weights["model.norm.weight"], weights["model.layers.1.mlp.up_proj.weight"]
    weights["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(24, 30)
    weights["model.layers.2.mlp.up_proj.weight"] = torch.zeros(20, 24)
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(30)
    with pytest.raises(WeightError) as caught:
        load(write(tmp_path, weights))
    assert str(caught.value).splitlines()[1:] == [
        "  missing: model.layers.1.mlp.up_proj.weight",
        "  missing: model.norm.weight",
        "  not known to this architecture: model.layers.0.self_attn.q_proj.bias",
        "  not known to this architecture: model.layers.2.mlp.up_proj.weight",
        "  wrongly shaped: model.layers.0.self_attn.q_proj.weight is [24, 30], not [30, 24]",
    ]


def test_a_long_list_of_wrong_weights_is_cut(tmp_path):
    with pytest.raises(WeightError, match=r"missing: \d+ more"):
        load(write(tmp_path, {"x": torch.zeros(1)}, num_hidden_layers=40))


def test_a_value_that_float16_cannot_hold_is_an_error(tmp_path):
    weights = tensors()
    weights["model.layers.1.mlp.down_proj.weight"][3, 4] = 1e6
    folder = write(tmp_path, weights)
    with pytest.raises(WeightError, match=r"layers\.1\.mlp\.down_proj\.weight .*range of float16"):
        load(folder, torch.float16)
    load(folder, torch.bfloat16)


def test_int8_weights_are_close_and_the_rest_is_exact(tmp_path):
    weights = tensors()
    for tied in (False, True):
        if tied:
            del weights["lm_head.weight"]
        model = load(write(tmp_path, weights, tie_word_embeddings=tied), quantization="int8")
        x = torch.randn(5, 24)
        names = [f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv"]
        exact = x @ torch.cat([weights[name] for name in names]).T
        error = model.model.layers[1].self_attn.qkv_proj(x) - exact
        assert 0 < error.abs().max() < 0.02 * exact.abs().max()
        source = "model.embed_tokens.weight" if tied else "lm_head.weight"
        logits = x @ weights[source].T
        error = model.compute_logits(x) - logits
        assert 0 < error.abs().max() < 0.02 * logits.abs().max()
        table = model.model.embed_tokens.weight
        assert torch.equal(table, weights["model.embed_tokens.weight"])
        assert torch.equal(model.model.norm.weight, weights["model.norm.weight"])


def test_fused_parts_and_small_chunks_quantise_as_whole_tensors_do(tmp_path, monkeypatch):
    folder = write(tmp_path, tensors())
    x = torch.randn(3, 24)
    whole = load(folder, quantization="int8").model.layers[0].self_attn.qkv_proj(x)
    monkeypatch.setattr(staging, "_CACHED_BYTES", 1)
    assert torch.equal(
        load(folder, quantization="int8").model.layers[0].self_attn.qkv_proj(x), whole
    )


def test_progress_counts_every_byte_once(tmp_path):
    class Counter:
        def start(self, total):
            self.total, self.done, self.finished = total, 0, False

        def advance(self, count):
            self.done += count

        def finish(self):
            self.finished = True

    weights = tensors()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    for quantization in ("none", "int8"):
        counter = Counter()
        load(
            write(tmp_path, weights, 2, tie_word_embeddings=True),
            progress=counter,
            quantization=quantization,
        )
        expected = sum(w.numel() * 4 for n, w in weights.items() if n != "lm_head.weight")
        assert (counter.total, counter.done, counter.finished) == (expected, expected, True)


def test_what_the_device_cannot_do_is_refused(tmp_path, monkeypatch):
    folder = write(tmp_path, tensors())
    monkeypatch.setattr(CpuDevice, "supports", lambda self, name: Support.no("no such kernel"))
    with pytest.raises(UnsupportedModelError, match=r"float32 is not .* no such kernel.*--dtype"):
        load(folder)
    monkeypatch.setattr(CpuDevice, "supports", lambda self, name: Support(name in CAPABILITIES))
    with pytest.raises(SettingsError, match="dtype: 'float64' is not one of auto, float32"):
        load(folder, torch.float64)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"quantization": "int3"}, SettingsError, "quantization: 'int3' is not one of none, int8"),
        (
            {"max_seq_len": 65},
            UnsupportedModelError,
            "max_seq_len 65 is longer than the 64 positions.*--max-seq-len",
        ),
    ],
)
def test_settings_that_cannot_hold_are_refused(tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        load(write(tmp_path, tensors()), **settings)


def test_torch_keeps_its_number_of_threads(tmp_path):
    folder = write(tmp_path, tensors())
    before = torch.get_num_threads()
    seen = []
    load(folder)
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start(), thread.join()
    assert (torch.get_num_threads(), seen) == (before, [before])


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path, monkeypatch):
    folder = write(tmp_path, tensors())
    checkpoint = Checkpoint.open(folder)
    (folder / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(Checkpoint, "open", lambda path: checkpoint)
    with pytest.raises(CheckpointError, match=r"model\.safetensors became shorter"):
        load(folder)


def test_max_seq_len_bounds_the_rotary_table(tmp_path):
    folder = write(tmp_path, tensors())
    assert load(folder, max_seq_len=17).model.rotary.cos_sin.shape == (17, 10)
    assert load(folder).model.rotary.cos_sin.shape == (64, 10)


def test_the_explanation_names_device_model_and_backend(tmp_path):
    folder = write(tmp_path, tensors())
    settings = ModelSettings(quantization="int8")
    text = explain(folder, device=resolve_device("cpu"), settings=settings)
    assert "device: CPU (" in text
    assert "model: Qwen3ForCausalLM, 2 layers, context 64" in text
    assert "kept as float32, linear weights int8" in text
    assert "paged (priority 0): chosen" in text
    assert "not on this device:\n  quantized_kv_cache: the kernels keep" in text


def test_a_strategy_for_experts_that_are_not_there_is_refused(tmp_path):
    folder = write(tmp_path, tensors())
    settings = ModelSettings(moe_strategy="plain")
    for opens in (load_model, explain):
        with pytest.raises(UnsupportedModelError, match=r"--moe-strategy plain: .* has no experts"):
            opens(folder, device=resolve_device("cpu"), settings=settings)


# Forks for each line of its input, so that torch is imported once and no peak hides the next.
_MEASURE = """
import os, re, sys, torch
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import resolve_device
from rtp_llm.loader import load_model

device = resolve_device("cpu")

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

def measure(folder, small, kept, quantization):
    torch.set_num_threads(1)
    settings = ModelSettings(dtype=kept, quantization=quantization)
    load_model(small, device=device, settings=settings)  # libraries are not weights
    before = peak()
    model = load_model(folder, device=device, settings=settings)
    kept_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    print(peak() - before, kept_bytes, flush=True)

for line in sys.stdin:
    if not os.fork():
        measure(*line.split())
        os._exit(0)
    if os.wait()[1]:
        print("it failed", flush=True)
"""


@pytest.fixture(scope="module")
def measured():
    """The growth of the peak, and the bytes that are kept, when a process loads a folder."""
    environment = os.environ | {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    command, pipe = [sys.executable, "-c", _MEASURE], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:

        def measure(*words):
            print(*words, file=process.stdin, flush=True)
            return map(int, process.stdout.readline().split())

        yield measure
        process.stdin.close()


@pytest.mark.parametrize(
    ("stored", "kept", "quantization"),
    [
        (torch.float32, "float32", "none"),
        (torch.float32, "bfloat16", "none"),
        (torch.bfloat16, "float32", "none"),
        (torch.float32, "float32", "int8"),
        (torch.float8_e4m3fn, "float32", "none"),
    ],
)
def test_memory_stays_within_the_weights_and_one_tensor(
    tmp_path, measured, stored, kept, quantization
):
    sizes = {"vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 8192, "head_dim": 128}
    weights = {name: grow(name, weight) for name, weight in tensors(stored).items()}
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir(), large.mkdir()
    write(small, tensors())
    if stored is torch.float8_e4m3fn:
        weights, fp8 = in_blocks(weights)
        sizes["quantization_config"] = fp8
    write(large, weights, 2, **sizes, num_attention_heads=8, num_key_value_heads=4)
    largest = max(weight.numel() for weight in weights.values()) * 4
    total = sum(weight.nbytes for weight in weights.values())
    growth, kept_bytes = measured(large, small, kept, quantization)
    # A huge page that the small model has begun takes weights of the large one too.
    assert kept_bytes <= growth + 3 * 2**20
    assert growth < kept_bytes + largest
    assert total > 3 * largest  # a second copy of the checkpoint would not pass


def in_blocks(weights):
    """The tensors of an FP8 checkpoint, and what its config says of them."""
    found = {}
    for name, weight in weights.items():
        if not name.endswith("proj.weight"):
            found[name] = weight.float()
            continue
        found[name] = weight
        found[f"{name}_scale_inv"] = torch.ones([-(-size // 128) for size in weight.shape])
    return found, {"quant_method": "fp8", "weight_block_size": [128, 128]}


def grow(name, weight):
    """The tensor of the same name in a model of the sizes above."""
    longer = {37: 8192, 24: 1024, 20: 8192, 30: 1024}
    if "k_proj" in name or "v_proj" in name:
        longer[10] = 512
    if "_norm" in name and "layernorm" not in name:
        longer[10] = 128
    return torch.ones([longer.get(length, length) for length in weight.shape], dtype=weight.dtype)
