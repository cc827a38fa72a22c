# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the formats of other makers against the same models as floats."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm import ops
from rtp_llm.device import resolve_device
from rtp_llm.layers.linear.int8 import Int8Linear, W8A8Int8Linear
from rtp_llm.layers.linear.mlx import MlxLinear
from rtp_llm.layers.linear.mxfp4 import Mxfp4Linear
from rtp_llm.layers.linear.table4 import Table4Linear
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.loader import explain
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import model_settings, open_model
from rtp_llm.testing.models.stored_checkpoints import PACKINGS, store_packed
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

torch.set_num_threads(2)

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 192, "intermediate_size": 256, "attention_bias": True},
    "qwen3_moe": {"hidden_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 2},
    # Queries and gates of a head share a tensor and its scales.
    "qwen3_next": {
        "hidden_size": 128,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 32,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
}
CASES = [(packing, kind) for packing in PACKINGS for kind in ("llama", "qwen3_moe")]
CASES += [(packing, "qwen3_next") for packing in ("w8a8 static", "nested nf4", "mlx")]
INT8 = {
    "w8a8": W8A8Int8Linear,
    "w8a8 static": W8A8Int8Linear,
    "w8a16": Int8Linear,
    "bitsandbytes int8": Int8Linear,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Saves each model of MODELS once."""

    @cache
    def save(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        save_model(folder, kind, seed=3, **MODELS[kind])
        return folder

    return save


Made = Callable[[str, str], tuple[Path, Path]]


@pytest.fixture
def make(saved: Callable[[str], Path], tmp_path: Path) -> Made:
    """The folders of a model in a format, and of the same model as floats."""

    def made(packing: str, kind: str) -> tuple[Path, Path]:
        folder = shutil.copytree(saved(kind), tmp_path / "stored")
        return folder, store_packed(folder, PACKINGS[packing])

    return made


def logits(model: CausalLM) -> torch.Tensor:
    return ContiguousRunner(model, 1, 64).prefill(random_prompt(24), None)


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device that multiplies nothing but floats."""
    kept = (
        "int8_linear",
        "w8a8_int8_linear",
        "mxfp4_grouped_linear",
        "table4_grouped_linear",
        "wna16_grouped_linear",
        "wna16_linear",
    )
    has_kernel = ops.has_kernel
    monkeypatch.setattr(
        ops, "has_kernel", lambda name, kind: name not in kept and has_kernel(name, kind)
    )


@pytest.mark.parametrize(("packing", "kind"), CASES)
def test_floats_are_the_values_of_the_file(
    make: Made, packing: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_kernels(monkeypatch)
    stored, wide = map(open_model, make(packing, kind))
    torch.testing.assert_close(logits(stored), logits(wide), rtol=1e-4, atol=1e-5)
    if kind == "qwen3_next":
        return  # its small projections are one layer where all of their parts are floats
    found, expected = stored.state_dict(), wide.state_dict()
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("packing", INT8)
def test_int8_stays_int8(make: Made, packing: str) -> None:
    stored, wide = make(packing, "llama")
    model, floats = open_model(stored), open_model(wide)
    layer = model.model.layers[1]
    kinds = {type(layer.self_attn.qkv_proj), type(layer.mlp.down_proj)}
    assert kinds == {INT8[packing]}
    exact, found = logits(floats), logits(model)
    error = (found - exact).norm() / exact.norm()
    rounded = logits(open_model(wide, quantization="w8a8_int8")) - exact
    assert error < (1e-5 if INT8[packing] is Int8Linear else 1.1 * rounded.norm() / exact.norm())
    settings = model_settings(torch.float32)
    text = explain(stored, device=resolve_device("cpu"), settings=settings)
    assert "of int8 " in text and "as they are" in text


@pytest.mark.parametrize("packing", ["w8a8", "w8a8 static"])
def test_int8_experts_stay_int8(make: Made, packing: str) -> None:
    """Only activations are rounded, to 8 bits."""
    stored, wide = map(open_model, make(packing, "qwen3_moe"))
    blocks = [each.model.layers[1].mlp for each in (stored, wide)]
    assert [each.executor.name for each in blocks] == ["wna16", "plain"]
    assert blocks[0].experts.down.weight.dtype is torch.int8
    ids = torch.stack([torch.randperm(8)[:3] for _ in range(9)]).int()
    given = Dispatched(torch.randn(9, 128), ids, torch.rand(9, 3))
    found, exact = (each.executor.execute(given) for each in blocks)
    assert 0 < (found - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_mxfp4_stays_packed(make: Made, kind: str) -> None:
    stored, wide = make("mxfp4", kind)
    model, floats = open_model(stored), open_model(wide)
    block = model.model.layers[-1]
    assert type(block.self_attn.o_proj) is Mxfp4Linear
    if kind != "llama":
        assert block.mlp.executor.name == "mxfp4"
        assert block.mlp.experts.down.weight.dtype is torch.int8
    text = explain(stored, device=resolve_device("cpu"), settings=model_settings())
    assert "of MXFP4 blocks as they are" in text and "become" not in text
    torch.testing.assert_close(logits(model), logits(floats), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("packing", "kind"),
    [("nvfp4", "llama"), ("nvfp4", "qwen3_moe"), ("modelopt nvfp4", "qwen3_next"), ("nf4", "llama")]
    + [("nested nf4", kind) for kind in ("llama", "qwen3_next", "qwen3_moe")],
)
def test_codes_of_tables_stay_packed(make: Made, packing: str, kind: str) -> None:
    """Parts may be interleaved in a tensor; experts stay packed, too."""
    stored, wide = make(packing, kind)
    model, floats = open_model(stored), open_model(wide)
    name = f"model.layers.{2 if kind == 'qwen3_next' else 1}.self_attn.qkv_proj"
    layer = model.get_submodule(name)
    assert type(layer) is Table4Linear
    x = torch.randn(9, layer.columns)
    torch.testing.assert_close(layer(x), floats.get_submodule(name)(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(model), logits(floats), rtol=1e-4, atol=1e-4)
    text = explain(stored, device=resolve_device("cpu"), settings=model_settings())
    assert "as they are" in text and "become" not in text
    if kind != "llama":
        assert model.model.layers[1].mlp.executor.name == "table4"


def test_columns_of_codes_are_padded_to_whole_blocks(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    sizes = {"hidden_size": 80, "moe_intermediate_size": 48, "num_hidden_layers": 2}
    save_model(folder, "qwen3_moe", **sizes, num_attention_heads=4, head_dim=20)
    stored, wide = map(open_model, (folder, store_packed(folder, PACKINGS["nvfp4"])))
    block = stored.model.layers[1]
    assert (type(block.self_attn.qkv_proj), block.mlp.executor.name) == (Table4Linear, "table4")
    torch.testing.assert_close(logits(stored), logits(wide), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("packing", ["w8a8", "modelopt nvfp4", "mxfp4"])
def test_the_explanation_tells_experts_from_the_rest(make: Made, packing: str) -> None:
    stored, _ = make(packing, "qwen3_moe")
    settings = model_settings(torch.bfloat16)
    text = explain(stored, device=resolve_device("cpu"), settings=settings)
    line = next(each for each in text.splitlines() if each.startswith("weights"))
    kept, grown = re.search("(blocks|channels) as they are", line), "become" in line
    assert bool(kept) and not grown, line


def test_groups_of_a_checkpoint_may_differ(saved: Callable[[str], Path], tmp_path: Path) -> None:
    """Experts in MXFP4, attention in int8."""
    files, configs, wide = [], [], []
    for packing in ("mxfp4", "w8a8"):
        folder = shutil.copytree(saved("qwen3_moe"), tmp_path / packing)
        wide.append(store_packed(folder, PACKINGS[packing]))
        files.append(load_file(folder / "model.safetensors"))
        configs.append(json.loads((folder / "config.json").read_text())["quantization_config"])
    for kind, (experts, rest) in {
        "model.safetensors": files,
        "wide": [load_file(each / "model.safetensors") for each in wide],
    }.items():
        mixed = {name: each for name, each in experts.items() if ".experts." in name}
        mixed |= {name: each for name, each in rest.items() if ".experts." not in name}
        folder = wide[0] if kind == "wide" else tmp_path / "w8a8"
        save_file(mixed, folder / "model.safetensors", {"format": "pt"})
    groups = {}
    for name, config in zip(("re:.*experts.*", "Linear"), configs, strict=True):
        group = {**config["config_groups"]["group_0"], "format": config["format"]}
        groups[name] = {**group, "targets": [name]}
    values = json.loads((tmp_path / "w8a8" / "config.json").read_text())
    values["quantization_config"] |= {"format": "mixed-precision", "config_groups": groups}
    (tmp_path / "w8a8" / "config.json").write_text(json.dumps(values))
    model = open_model(tmp_path / "w8a8")
    layer = model.model.layers[1]
    assert layer.mlp.executor.name == "mxfp4"
    assert type(layer.self_attn.o_proj) is W8A8Int8Linear
    exact = logits(open_model(wide[0]))
    assert (logits(model) - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_groups_of_mlx_stay_packed(make: Made, kind: str) -> None:
    """Only activations are rounded, to 8 bits; parts may be interleaved in a tensor."""
    stored, wide = map(open_model, make("mlx", kind))
    name = f"model.layers.{2 if kind == 'qwen3_next' else 1}.self_attn.qkv_proj"
    packed, floats = (each.get_submodule(name) for each in (stored, wide))
    assert type(packed) is MlxLinear
    x = torch.randn(9, packed.columns)
    exact = floats(x)
    assert 0 < (packed(x) - exact).norm() < 0.01 * exact.norm()


def test_mlx_packs_embeddings_routers_and_stacks_experts(
    saved: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_kernels(monkeypatch)
    folder = shutil.copytree(saved("qwen3_moe"), tmp_path / "stored")
    every = ("proj.weight", "embed_tokens.weight", "lm_head.weight", "mlp.gate.weight")
    wide = store_packed(folder, PACKINGS["mlx"], lambda name: name.endswith(every))
    tensors = load_file(folder / "model.safetensors")
    experts: dict[str, list[torch.Tensor]] = defaultdict(list)
    for name in sorted(tensors, key=lambda name: [int(n) for n in re.findall(r"\d+", name)]):
        if ".experts." in name:
            experts[re.sub(r"experts\.\d+", "switch_mlp", name)].append(tensors.pop(name))
    stacked = {name: torch.stack(parts) for name, parts in experts.items()}
    save_file({**tensors, **stacked}, folder / "model.safetensors", {"format": "pt"})
    values = json.loads((folder / "config.json").read_text())
    values["quantization"] = values.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(values))
    found, expected = (open_model(each).state_dict() for each in (folder, wide))
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_modelopt_may_have_a_file_of_its_own(make: Made) -> None:
    stored, wide = make("modelopt nvfp4", "llama")
    values = json.loads((stored / "config.json").read_text())
    given = values.pop("quantization_config")
    (stored / "config.json").write_text(json.dumps(values))
    given.pop("quant_method")
    (stored / "hf_quant_config.json").write_text(json.dumps({"quantization": given}))
    found, expected = (logits(open_model(each)) for each in (stored, wide))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
