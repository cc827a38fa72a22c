# SPDX-License-Identifier: Apache-2.0
"""Model folders of transformers, stored again in FP8 blocks as DeepSeek-V3 and Qwen3-FP8 are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

QUANTIZATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}


def projections(name: str) -> bool:
    """Whether a tensor is one of those that published FP8 checkpoints have in FP8."""
    ends = ("proj", "proj_with_mqa", "in_proj_qkv", "in_proj_qkvz", "in_proj_z")
    return name.endswith(tuple(f"{end}.weight" for end in ends)) and ".visual." not in name


def store_as_fp8(
    folder: Path, converts: Callable[[str], bool] = projections, dtype: torch.dtype = torch.float32
) -> Path:
    """Turn the one weight file of `folder` into FP8 blocks for the names that `converts` takes.

    The other weights have `dtype`. The returned folder holds the same model without FP8: all
    weights have `dtype`, with the values that the blocks represent.
    """
    wide = folder.with_name(f"{folder.name}-wide")
    shutil.copytree(folder, wide)
    stored, kept, left = {}, {}, []
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not converts(name):
            stored[name] = kept[name] = tensor.to(dtype)
            left.append(name.removesuffix(".weight"))
            continue
        stored[name], stored[f"{name}_scale_inv"] = numbers, scales = in_blocks(tensor.float())
        kept[name] = dequantised(numbers, scales).to(dtype)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    save_file(kept, wide / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {**QUANTIZATION, "modules_to_not_convert": left}
    (folder / "config.json").write_text(json.dumps(config))
    return wide


def in_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 and scales of each block of 128 x 128, one by one."""
    rows, columns = weight.shape
    numbers = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // 128), -(-columns // 128))
    for row in range(0, rows, 128):
        for column in range(0, columns, 128):
            place = slice(row, row + 128), slice(column, column + 128)
            scale = weight[place].abs().max() / 448
            scales[row // 128, column // 128] = scale
            numbers[place] = (weight[place] / scale).to(numbers.dtype)
    return numbers, scales


def dequantised(numbers: Tensor, scales: Tensor) -> Tensor:
    """The float32 weight of blocks."""
    wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return numbers.float() * wide[: numbers.shape[0], : numbers.shape[1]]
