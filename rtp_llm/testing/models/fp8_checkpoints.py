# SPDX-License-Identifier: Apache-2.0
"""Model folders of transformers, stored again in FP8 as published checkpoints are.

Blocks as DeepSeek-V3 and Qwen3-FP8 have them; channels and tensors as llm-compressor, FBGEMM and
AutoFP8 (Llama and Mistral) store them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rtp_llm.testing.models.stored_checkpoints import Packing, projections, store_packed

QUANTIZATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}


def compressed_tensors(strategy: str, *, dynamic: bool) -> dict[str, Any]:
    """quantization_config of the format float-quantized, without its list of ignored modules."""
    numbers = {"num_bits": 8, "type": "float", "symmetric": True}
    activations = {"dynamic": dynamic, "strategy": "token" if dynamic else "tensor"}
    group = {
        "targets": ["Linear"],
        "weights": {**numbers, "strategy": strategy, "dynamic": False},
        "input_activations": {**numbers, **activations},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
    }


@dataclass(frozen=True)
class Style:
    """How a checkpoint stores FP8: `config`, and the scales' name, granularity and shape.

    `kind` is "block", "channel" or "tensor"; `axes` is the number of axes of a channel's or
    tensor's scales. `ignored` is the key that lists modules left as floats; `input_scale` names a
    stored scale of activations.
    """

    config: dict[str, Any]
    kind: str = "block"
    scale_name: str = "weight_scale_inv"
    axes: int = 2
    ignored: str = "modules_to_not_convert"
    input_scale: str = ""

    def quantize(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """e4m3, the stored scales, and the float32 weight that they represent."""
        if self.kind == "block":
            numbers, scales = in_blocks(weight)
            return numbers, scales, dequantised(numbers, scales)
        largest = weight.abs().amax(1, keepdim=True)
        scales = (largest if self.kind == "channel" else largest.amax(0, keepdim=True)) / 448
        numbers = (weight / scales).to(torch.float8_e4m3fn)
        shape = scales.shape if self.axes == 2 else scales.shape[: self.axes]
        return numbers, scales.reshape(shape), numbers.float() * scales


BLOCKS = Style(QUANTIZATION)
CHANNELS = Style(
    compressed_tensors("channel", dynamic=True), "channel", "weight_scale", ignored="ignore"
)
TENSORS = Style(
    compressed_tensors("tensor", dynamic=False),
    "tensor",
    "weight_scale",
    axes=1,
    ignored="ignore",
    input_scale="input_scale",
)
HF_TENSORS = Style(
    {"quant_method": "fp8", "activation_scheme": "static"},
    "tensor",
    "weight_scale",
    axes=0,
    ignored="ignored_layers",
    input_scale="input_scale",
)
FBGEMM = Style({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "channel",
               "weight_scale", axes=1)  # fmt: skip


def store_as_fp8(
    folder: Path,
    converts: Callable[[str], bool] = projections,
    dtype: torch.dtype = torch.float32,
    style: Style = BLOCKS,
) -> Path:
    """Turn the one weight file of `folder` into FP8; see store_packed."""

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        numbers, scales, value = style.quantize(weight)
        tensors = {"weight": numbers, style.scale_name: scales}
        if style.input_scale:
            tensors[style.input_scale] = torch.ones(())
        return tensors, value

    return store_packed(folder, Packing(pack, style.config, style.ignored), converts, dtype)


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
