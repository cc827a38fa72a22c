# SPDX-License-Identifier: Apache-2.0
"""Model folders of transformers, stored again in the formats of other makers.

Each packer has the formula of the package that writes the format.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rtp_llm.ops.moe.mxfp4_blocks import E2M1, dequantize_rows
from rtp_llm.quantization.mxfp4 import nearest_codes, quantize_rows

# A float32 weight -> the tensors it is stored in, by the ends of their names, and their value.
Pack = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]


def projections(name: str) -> bool:
    """Whether a tensor is one of those that published checkpoints quantise."""
    ends = ("proj", "proj_with_mqa", "in_proj_qkv", "in_proj_qkvz", "in_proj_z")
    return name.endswith(tuple(f"{end}.weight" for end in ends)) and ".visual." not in name


@dataclass(frozen=True)
class Packing:
    """A format: how a weight is packed, quantization_config, and its key for float modules."""

    pack: Pack
    config: dict[str, Any] = field(default_factory=dict)
    ignored: str = "ignore"


def store_packed(
    folder: Path,
    packing: Packing,
    converts: Callable[[str], bool] = projections,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Pack the weights in the one file of `folder` whose names `converts` takes.

    The other weights have `dtype`. The returned folder holds the same model unpacked: all weights
    have `dtype`, with the values that the packed tensors represent.
    """
    wide = folder.with_name(f"{folder.name}-wide")
    shutil.copytree(folder, wide)
    stored, kept, left = {}, {}, []
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not converts(name):
            stored[name] = kept[name] = tensor.to(dtype)
            left.append(name.removesuffix(".weight"))
            continue
        tensors, value = packing.pack(tensor.float())
        module = name.removesuffix("weight")
        stored |= {f"{module}{suffix}": each for suffix, each in tensors.items()}
        kept[name] = value.to(dtype)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    save_file(kept, wide / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {**packing.config, packing.ignored: left}
    (folder / "config.json").write_text(json.dumps(config))
    return wide


def compressed(packing: str, weights: dict[str, Any], activations: Any = None) -> dict[str, Any]:
    """quantization_config of compressed-tensors with one group, without its ignored modules."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": packing,
        "config_groups": {"group_0": group},
    }


_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
_INT8_TOKENS = {**_INT8, "strategy": "token", "dynamic": True}
_INT8_STATIC = {**_INT8, "strategy": "tensor", "dynamic": False, "symmetric": False}
_FP4 = {"num_bits": 4, "type": "float", "symmetric": True}


def int8_channels(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127.5
    numbers = (weight / scale).round().clamp(-128, 127)
    return {"weight": numbers.to(torch.int8), "weight_scale": scale}, numbers * scale


def int8_tensor(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = weight.abs().max().view(1) / 127.5
    numbers = (weight / scale).round().clamp(-128, 127)
    static = {"input_scale": torch.ones(1), "input_zero_point": torch.zeros(1, dtype=torch.int8)}
    return {"weight": numbers.to(torch.int8), "weight_scale": scale, **static}, numbers * scale


def _nvfp4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes uint8 [N, K / 2], scales e4m3 [N, K / 16], the scale of the tensor, and the value."""
    blocks = weight.view(len(weight), -1, 16)
    whole = weight.abs().max() / (6 * 448)
    scales = (blocks.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
    factors = (scales.float() * whole)[..., None]
    codes, numbers = nearest_codes(torch.where(factors > 0, blocks / factors, 0))
    value = (numbers * factors).view_as(weight)
    pairs = codes.view(len(weight), -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4, scales, whole, value


def modelopt_nvfp4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    packed, scales, whole, value = _nvfp4(weight)
    tensors = {"weight": packed, "weight_scale": scales, "weight_scale_2": whole}
    return {**tensors, "input_scale": torch.ones(())}, value


def packed_nvfp4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """compressed-tensors: the stored global scale is the inverse, and divides."""
    packed, scales, whole, _ = _nvfp4(weight)
    inverse = 1 / whole.view(1)
    codes = torch.stack((packed & 0xF, packed >> 4), -1).flatten(1).long()
    numbers = torch.tensor(E2M1)[codes].view(len(weight), -1, 16)
    value = (numbers * (scales.float() / inverse)[..., None]).view_as(weight)
    tensors = {"weight_packed": packed, "weight_scale": scales, "weight_global_scale": inverse}
    return {**tensors, "input_global_scale": torch.ones(1)}, value


def packed_mxfp4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    blocks, scales = quantize_rows(weight)
    return {"weight_packed": blocks, "weight_scale": scales}, dequantize_rows(blocks, scales)


def modelopt_fp8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = weight.abs().max() / 448
    numbers = (weight / scale).to(torch.float8_e4m3fn)
    tensors = {"weight": numbers, "weight_scale": scale, "input_scale": torch.ones(())}
    return tensors, numbers.float() * scale


# Of normal numbers, the means of 16 intervals that are equally likely; here to two digits.
NF4 = (-1.0, -0.7, -0.53, -0.39, -0.28, -0.18, -0.09, 0.0,
       0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0)  # fmt: skip


def nf4(weight: Tensor, *, nested: bool = True) -> tuple[dict[str, Tensor], Tensor]:
    """bitsandbytes: blocks of 64, whose largest magnitudes may be bytes of blocks of 256."""
    table, blocks = torch.tensor(NF4), weight.reshape(-1, 64)
    absmax = blocks.abs().amax(1)
    codes = (blocks[..., None] / absmax[:, None, None] - table).abs().argmin(-1).to(torch.uint8)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "shape": list(weight.shape)}
    tensors = {"weight.absmax": absmax, "weight.quant_map": table}
    if nested:
        offset, levels = float(absmax.mean()), torch.linspace(-1, 1, 256)
        padded = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
        outer = padded.abs().amax(1)
        inner = ((padded / outer[:, None] + 1) / 2 * 255).round().to(torch.uint8)
        inner = inner.flatten()[: len(absmax)]
        absmax = levels[inner.long()] * outer.repeat_interleave(256)[: len(absmax)] + offset
        state |= {"nested_blocksize": 256, "nested_offset": offset}
        tensors |= {"weight.absmax": inner, "weight.nested_absmax": outer}
        tensors["weight.nested_quant_map"] = levels
    content = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    tensors["weight.quant_state.bitsandbytes__nf4"] = content
    pairs = codes.view(-1, 2)
    tensors["weight"] = (pairs[:, 0] << 4 | pairs[:, 1]).view(-1, 1)
    return tensors, (table[codes.long()] * absmax[:, None]).view_as(weight)


def bnb_int8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    largest = weight.abs().amax(1)
    numbers = (weight * 127 / largest[:, None]).round()
    value = numbers * largest[:, None] * 7.874015718698502e-3
    tensors = {"weight": numbers.to(torch.int8), "SCB": largest}
    return {**tensors, "weight_format": torch.zeros((), dtype=torch.uint8)}, value


def mlx4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """MLX: groups of 64, scales in bfloat16, which products and sums are rounded to."""
    groups = weight.view(len(weight), -1, 64)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales, biases = ((high - low) / 15).bfloat16(), low.bfloat16()
    codes = ((groups - biases) / scales).round().clamp(0, 15)
    value = (codes.bfloat16() * scales + biases).float().view_as(weight)
    words = codes.long().view(len(weight), -1, 8)
    packed = sum(words[..., place] << 4 * place for place in range(8))
    assert isinstance(packed, Tensor)
    tensors = {
        "weight": packed.to(torch.uint32),
        "scales": scales[..., 0],
        "biases": biases[..., 0],
    }
    return tensors, value


_CHANNEL, _TENSOR = {**_INT8, "strategy": "channel"}, {**_INT8, "strategy": "tensor"}
_NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
_BNB8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
_SKIPPED = "llm_int8_skip_modules"
PACKINGS = {
    "w8a8": Packing(int8_channels, compressed("int-quantized", _CHANNEL, _INT8_TOKENS)),
    "w8a8 static": Packing(int8_tensor, compressed("int-quantized", _TENSOR, _INT8_STATIC)),
    "w8a16": Packing(int8_channels, compressed("int-quantized", _CHANNEL)),
    "modelopt fp8": Packing(modelopt_fp8, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "modelopt nvfp4": Packing(
        modelopt_nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    ),
    "nvfp4": Packing(
        packed_nvfp4,
        compressed("nvfp4-pack-quantized", {**_FP4, "strategy": "tensor_group", "group_size": 16}),
    ),
    "mxfp4": Packing(
        packed_mxfp4,
        compressed("mxfp4-pack-quantized", {**_FP4, "strategy": "group", "group_size": 32}),
    ),
    "nf4": Packing(partial(nf4, nested=False), _NF4, _SKIPPED),
    "nested nf4": Packing(nf4, _NF4, _SKIPPED),
    "bitsandbytes int8": Packing(bnb_int8, _BNB8, _SKIPPED),
    "mlx": Packing(mlx4, {"bits": 4, "group_size": 64}),
}
