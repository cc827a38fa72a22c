# SPDX-License-Identifier: Apache-2.0
"""quantization_config: the format of each module, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rtp_llm.layers.weights.stored.mlx import MlxGroups
from rtp_llm.layers.weights.stored_config import UnsupportedFormatError, read_stored_modules

FP8 = {"num_bits": 8, "type": "float", "symmetric": True}


def group(strategy: str, /, *targets: str, **activations: Any) -> dict[str, Any]:
    given = {"dynamic": True, "strategy": "token", **activations}
    return {
        "targets": list(targets) or ["Linear"],
        "weights": {**FP8, "strategy": strategy, "block_structure": [128, 128]},
        "input_activations": {**FP8, **given},
    }


def compressed(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {f"group_{i}": each for i, each in enumerate(groups)},
        **more,
    }


def names(config: dict[str, Any], *modules: str) -> list[str]:
    stored = read_stored_modules({"quantization_config": config})
    assert stored is not None
    return [stored.format_of(module).name for module in modules]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8_tensor"),
        ({"quant_method": "fbgemm_fp8"}, "fp8_channel"),
        (compressed(group("channel")), "fp8_channel"),
        (compressed(group("tensor", dynamic=False, strategy="tensor")), "fp8_tensor"),
        (compressed(group("block", strategy="group", group_size=128)), "fp8_block"),
    ],
)
def test_formats(config: dict[str, Any], expected: str) -> None:
    assert names(config, "model.layers.0.mlp.down_proj") == [expected]


INT8 = {"num_bits": 8, "type": "int", "symmetric": True}


def packed(packing: str, weights: dict[str, Any], *targets: str, **more: Any) -> dict[str, Any]:
    """A group with a format of its own."""
    return {"targets": list(targets) or ["Linear"], "format": packing, "weights": weights, **more}


def test_groups_may_have_formats_of_their_own() -> None:
    config = compressed(
        packed("nvfp4-pack-quantized", {**FP8, "num_bits": 4, "group_size": 16}, "re:.*experts.*"),
        packed("int-quantized", {**INT8, "strategy": "channel"}, "re:.*self_attn.*",
               input_activations={**INT8, "strategy": "token", "dynamic": True}),
        packed("float-quantized", {**FP8, "strategy": "tensor"}),
        format="mixed-precision",
        ignore=["lm_head"],
    )  # fmt: skip
    modules = ["a.experts.3.up_proj", "a.self_attn.q_proj", "a.mlp.down_proj", "lm_head"]
    expected = ["nvfp4", "int8_channel", "fp8_tensor_weight", "float"]
    assert names(config, *modules) == expected


MODELOPT = {"quant_method": "modelopt", "exclude_modules": ["lm_head", "model.layers.*.gate", "x*"]}


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("FP8", "fp8_tensor"),
        ("FP8_PER_CHANNEL_PER_TOKEN", "fp8_channel"),
        ("FP8_PB_WO", "fp8_block_weight"),
        ("NVFP4", "nvfp4"),
    ],
)
def test_modelopt(algorithm: str, expected: str) -> None:
    config = {**MODELOPT, "quant_algo": algorithm}
    modules = ["a.q_proj", "a.gate", "lm_head", "model.layers.3.gate", "xy.z"]
    assert names(config, *modules) == [expected, expected, *["float"] * 3]
    own_file = {"quant_method": "modelopt", "quantization": config}
    assert names(own_file, *modules[:2]) == [expected] * 2


def test_modelopt_with_several_algorithms() -> None:
    layers = {"a.q_proj": {"quant_algo": "FP8"}, "a.up": {"quant_algo": "NVFP4", "group_size": 16}}
    config = {**MODELOPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert names(config, "a.q_proj", "a.up", "a.down") == ["fp8_tensor", "nvfp4", "float"]


def test_bitsandbytes_says_which_modules_stay_floats() -> None:
    config = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "llm_int8_skip_modules": ["lm_head", "model.layers.1.mlp"],
    }
    modules = ["a.q_proj", "model.layers.1.mlp.up_proj", "model.layers.11.mlp.up_proj"]
    assert names(config, *modules) == ["bitsandbytes_nf4", "float", "bitsandbytes_nf4"]
    assert names({"quant_method": "bitsandbytes", "load_in_8bit": True}, "a") == ["int8_weight"]


def test_mlx_has_keys_for_modules() -> None:
    config = {
        "group_size": 64,
        "bits": 4,
        "a.gate": {"bits": 8},
        "a.switch_mlp.up_proj": {"group_size": 32},
        "lm_head": False,
    }
    stored = read_stored_modules({"quantization": config})
    assert stored is not None and stored.format_of("lm_head").name == "float"
    expected = {"a.q_proj": (4, 64), "a.gate": (8, 64), "a.experts.12.up_proj": (4, 32)}
    for module, form in expected.items():
        found = stored.format_of(module)
        assert isinstance(found, MlxGroups) and (found.bits, found.column_block) == form


def test_without_a_config_there_are_none() -> None:
    assert read_stored_modules({}) is None
    assert read_stored_modules({"compression_config": compressed(group("channel"))}) is not None


def test_modules_that_are_ignored() -> None:
    ignore = ["lm_head", "mlp.gate", "model.visual", r"re:.*\.1\..*o_proj$"]
    config = compressed(group("channel"), ignore=ignore)
    ignored = ["lm_head", "model.layers.3.mlp.gate", "model.visual.blocks.0.qkv", "x.1.attn.o_proj"]
    assert names(config, *ignored) == ["float"] * 4
    others = ["model.layers.3.mlp.gate_proj", "x.11.attn.o_proj", "x.visuals"]
    assert names(config, *others) == ["fp8_channel"] * 3
    for key in ("modules_to_not_convert", "ignored_layers"):
        config = {"quant_method": "fp8", key: ["lm_head"]}
        assert names(config, "lm_head", "x.q_proj") == ["float", "fp8_tensor"]


def test_names_of_a_text_part_may_have_its_prefix_or_not() -> None:
    """Modules are asked for without it."""
    text, layers = "model.language_model.", {"a.q": {"quant_algo": "FP8"}}
    published = {f"{text}{name}": each for name, each in layers.items()}
    mixed = {**MODELOPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": published}
    grouped = compressed(
        group("tensor", f"{text}a.down", r"re:model\.language_model\.a\.q$"), ignore=[f"{text}a.up"]
    )
    every = compressed(group("channel"), ignore=[f"{text}a.up", r"re:^model\.language.*down"])
    modules = ["model.a.q", "model.a.up", "model.a.down"]
    for config, expected in (
        (mixed, ["fp8_tensor", "float", "float"]),
        (grouped, ["fp8_tensor", "float", "fp8_tensor"]),
        (every, ["fp8_channel", "float", "float"]),
    ):
        stored = read_stored_modules({"quantization_config": config})
        assert stored is not None
        stored = replace(stored, prefixes=(text,))
        assert [stored.format_of(module).name for module in modules] == expected


def test_groups_of_names_come_before_the_rest() -> None:
    config = compressed(group("channel"), group("tensor", "re:.*down_proj", "mlp.up_proj"))
    modules = ["a.mlp.down_proj", "a.mlp.up_proj", "a.q_proj"]
    assert names(config, *modules) == ["fp8_tensor", "fp8_tensor", "fp8_channel"]
    only = compressed(group("tensor", "re:.*down_proj"))
    assert names(only, *modules) == ["fp8_tensor", "float", "float"]


def test_scales_of_activations_and_caches_are_known() -> None:
    stored = read_stored_modules({"quantization_config": {"quant_method": "fp8"}})
    assert stored is not None
    assert stored.ignores("a.q_proj.input_scale") and stored.ignores("a.self_attn.k_scale")
    assert not stored.ignores("a.q_proj.weight_scale")


@pytest.mark.parametrize(
    ("config", "row", "found"),
    [
        ({"quant_method": "aqlm"}, "quantized checkpoint", "quant_method 'aqlm'"),
        ({"quant_method": ["fp8"]}, "quantized checkpoint", r"quant_method \['fp8'\]"),
        (
            {"quant_method": "fp8", "weight_block_size": [64, 128]},
            "FP8 checkpoint of other blocks",
            r"\[64, 128\]",
        ),
        (
            {"quant_method": "fp8", "ignored_layers": "lm_head"},
            "quantized checkpoint",
            "ignored_layers is not a list of names",
        ),
        (compressed(format="marlin-24"), "quantized checkpoint", "'marlin-24'"),
        (
            compressed(packed("int-quantized", {**INT8, "strategy": "group"})),
            "quantized checkpoint",
            "int8 weights with strategy 'group'",
        ),
        (
            compressed(packed("int-quantized", {**INT8, "symmetric": False})),
            "quantized checkpoint",
            "weights of type 'int', 8 bits, not symmetric",
        ),
        (
            compressed(packed("nvfp4-pack-quantized", {**FP8, "num_bits": 4, "group_size": 8})),
            "quantized checkpoint",
            "4-bit floats in groups of 8",
        ),
        (
            compressed(packed("float-quantized", FP8), format="mixed-precision")
            | {"config_groups": {"group_0": {"targets": ["Linear"], "weights": FP8}}},
            "quantized checkpoint",
            "compressed-tensors format 'mixed-precision'",
        ),
        (
            compressed(group("channel"), transform_config={"config_groups": {"R1": {}}}),
            "quantized checkpoint",
            "transform_config",
        ),
        ({"bits": 3, "group_size": 64}, "quantized checkpoint", "3 bits in groups of 64"),
        ({"bits": 4, "mode": "mxfp4"}, "quantized checkpoint", "MLX quantisation of mode 'mxfp4'"),
        (
            {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "int4"},
            "quantized checkpoint",
            "bnb_4bit_quant_type 'int4'",
        ),
        (
            {"quant_method": "bitsandbytes", "bnb_4bit_quant_storage": "bfloat16"},
            "quantized checkpoint",
            "bnb_4bit_quant_storage 'bfloat16'",
        ),
        ({**MODELOPT, "quant_algo": "W4A16_AWQ"}, "quantized checkpoint", "'W4A16_AWQ'"),
        (
            {**MODELOPT, "quant_algo": "NVFP4", "group_size": 32},
            "quantized checkpoint",
            "NVFP4 with group_size 32",
        ),
        (
            {**MODELOPT, "quant_algo": "MIXED_PRECISION"},
            "quantized checkpoint",
            "MIXED_PRECISION with quantized_layers None",
        ),
        (compressed(), "quantized checkpoint", "no config_groups"),
        (compressed(group("group")), "FP8 checkpoint with other scales", "strategy 'group'"),
        (
            compressed(group("channel", num_bits=4)),
            "quantized checkpoint",
            "input_activations of type 'float', 4 bits",
        ),
        (
            compressed(group("channel", strategy="group", group_size=64)),
            "FP8 checkpoint with other scales",
            "strategy 'group', dynamic True",
        ),
        (
            compressed(group("group") | {"input_activations": None}),
            "FP8 checkpoint with other scales",
            "strategy 'group'",
        ),
        (compressed(group("channel"), ignore=["re:("]), "quantized checkpoint", "pattern 're:"),
        (
            compressed(group("channel"), sparsity_config={"format": "sparse-24-bitmask"}),
            "quantized checkpoint",
            "sparsity_config",
        ),
    ],
)
def test_others_are_refused(config: dict[str, Any], row: str, found: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=found) as caught:
        read_stored_modules({"quantization_config": config})
    assert caught.value.row == row
