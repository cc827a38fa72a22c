# SPDX-License-Identifier: Apache-2.0
"""Block-scaled FP8 in plain PyTorch: activations in 1x128 groups, weights in 128x128 tiles.

Numbers are float8 e4m3 (at most 448), scales float32: x = q * scale. On GPUs that need scales as
powers of two (UE8M0), an int32 holds the exponent bytes of four consecutive groups, the first
lowest. Layout and limits follow DeepGEMM (https://github.com/deepseek-ai/DeepGEMM).
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128  # channels of a group, and rows and columns of a weight's tile
E4M3 = torch.float8_e4m3fn
_LARGEST = 448.0
_LEAST_ROW_AMAX = 1e-10
_LEAST_WEIGHT_AMAX = 1e-4
_SCALE_ALIGNMENT = 4  # rows of a column of scales: 16 bytes


def num_blocks(size: int) -> int:
    """Blocks that cover `size` rows or columns."""
    return -(-size // BLOCK)


def scale_rows(rows: int) -> int:
    """Rows that a column of activation scales holds: padded, so that columns begin at 16 bytes."""
    return -(-rows // _SCALE_ALIGNMENT) * _SCALE_ALIGNMENT


def power_of_two(scales: Tensor) -> Tensor:
    """The smallest powers of two not below `scales`, which are positive."""
    mantissa, exponent = torch.frexp(scales)
    return torch.ldexp(torch.ones_like(scales), exponent - (mantissa == 0.5).to(exponent.dtype))


def _scales(largest: Tensor) -> Tensor:
    # On GPUs a division by a plain number is a multiplication, which rounds otherwise.
    return largest / largest.new_full((), _LARGEST)


def _quantized(x: Tensor, scales: Tensor) -> Tensor:
    return (x * scales.reciprocal()).clamp(-_LARGEST, _LARGEST).to(E4M3)


def quantize_rows(x: Tensor, *, powers_of_two: bool = False) -> tuple[Tensor, Tensor]:
    """x [..., M, K] of any float dtype -> (q e4m3 [..., M, K], scales f32 [..., M, ceil(K / 128)]).

    A last group of fewer than 128 channels counts as if zeros followed.
    """
    columns = x.shape[-1]
    groups = num_blocks(columns)
    padded = torch.nn.functional.pad(x.float(), (0, groups * BLOCK - columns))
    grouped = padded.view(*x.shape[:-1], groups, BLOCK)
    scales = _scales(grouped.abs().amax(-1).clamp_min(_LEAST_ROW_AMAX))
    if powers_of_two:
        scales = power_of_two(scales)
    q = _quantized(grouped, scales[..., None]).flatten(-2)
    return q[..., :columns].contiguous(), scales


def dequantize_rows(q: Tensor, scales: Tensor) -> Tensor:
    """float32 [..., M, K] of q and its scales [..., M, ceil(K / 128)]."""
    return q.float() * scales.repeat_interleave(BLOCK, dim=-1)[..., : q.shape[-1]]


def column_major(scales: Tensor) -> Tensor:
    """Scales [..., M, C] as GEMMs take them: [..., C, scale_rows(M)], zeros in the padding."""
    rows = scales.shape[-2]
    padding = (0, 0, 0, scale_rows(rows) - rows)
    return torch.nn.functional.pad(scales, padding).transpose(-1, -2).contiguous()


def row_major(scales: Tensor, rows: int) -> Tensor:
    """Scales [..., C, scale_rows(M)] as [..., M, C], a view."""
    return scales[..., :rows].transpose(-1, -2)


def quantize_weight(weight: Tensor, *, powers_of_two: bool = False) -> tuple[Tensor, Tensor]:
    """weight [..., N, K] -> (e4m3 [..., N, K], scales f32 [..., ceil(N / 128), ceil(K / 128)])."""
    rows, columns = weight.shape[-2:]
    down, across = num_blocks(rows), num_blocks(columns)
    padding = (0, across * BLOCK - columns, 0, down * BLOCK - rows)
    padded = torch.nn.functional.pad(weight.float(), padding)
    tiles = padded.view(*weight.shape[:-2], down, BLOCK, across, BLOCK)
    scales = _scales(tiles.abs().amax((-3, -1)).clamp_min(_LEAST_WEIGHT_AMAX))
    if powers_of_two:
        scales = power_of_two(scales)
    q = _quantized(tiles, scales[..., :, None, :, None])
    q = q.flatten(-4, -3).flatten(-2)
    return q[..., :rows, :columns].contiguous(), scales


def dequantize_weight(weight: Tensor, scales: Tensor) -> Tensor:
    """float32 [..., N, K] of a weight in tiles and its scales."""
    rows, columns = weight.shape[-2:]
    down = scales.repeat_interleave(BLOCK, dim=-2)[..., :rows, :]
    return weight.float() * down.repeat_interleave(BLOCK, dim=-1)[..., :columns]


def pack_ue8m0(scales: Tensor) -> Tensor:
    """Powers of two [..., C] as their exponent bytes, four in an int32: [..., ceil(C / 4)].

    Bytes past the last scale are zeros.
    """
    exponents = scales.float().contiguous().view(torch.int32) >> 23 & 0xFF
    columns = scales.shape[-1]
    padded = torch.nn.functional.pad(exponents, (0, -columns % 4)).to(torch.uint8)
    return padded.contiguous().view(torch.int32)


def unpack_ue8m0(packed: Tensor, columns: int) -> Tensor:
    """float32 [..., columns] of pack_ue8m0's result."""
    exponents = packed.contiguous().view(torch.uint8)[..., :columns]
    return (exponents.to(torch.int32) << 23).view(torch.float32)
