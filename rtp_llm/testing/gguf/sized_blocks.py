# SPDX-License-Identifier: Apache-2.0
"""Random blocks of GGUF's tensor types whose weights are as large as a model's."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.gguf.types import TYPES
from rtp_llm.ops.gguf.blocks import dequantize

# Where a block has its scale, where what is taken away or added, and how many scales that is for
# weights whose mean is zero.
_SCALE = {"Q4_0": 0, "Q4_1": 0, "Q5_0": 0, "Q5_1": 0, "Q8_0": 0, "Q2_K": 80, "Q3_K": 108}
_SCALE |= {"Q4_K": 0, "Q5_K": 0, "Q6_K": 208, "IQ4_NL": 0, "IQ4_XS": 0}
_LEAST = {"Q4_1": (2, -7.5), "Q5_1": (2, -15.5), "Q2_K": (82, 1.5)}
_LEAST |= {"Q4_K": (2, 7.5), "Q5_K": (2, 15.5)}
_EXPONENTS = 118, 123  # of MXFP4


def sized_blocks(kind: str, shape: tuple[int, ...], deviation: float, seed: int = 0) -> Tensor:
    """uint8 [..., bytes of a row] of weights `shape` with this standard deviation; F32, F16 and
    BF16, too."""
    generator = torch.Generator().manual_seed(seed)
    if kind in _FLOATS:
        weights = torch.randn(shape, generator=generator) * deviation
        return weights.to(_FLOATS[kind]).view(torch.uint8)
    size = next(each for each in TYPES.values() if each.name == kind)
    blocks = torch.randint(
        256,
        (*shape[:-1], shape[-1] // size.elements, size.block_bytes),
        generator=generator,
        dtype=torch.uint8,
    )
    if kind == "MXFP4":
        blocks[..., 0] = torch.randint(*_EXPONENTS, blocks.shape[:-1], generator=generator)
    else:
        _set_scale(kind, blocks, 1.0)
        found = float(dequantize(kind, blocks).std())
        _set_scale(kind, blocks, deviation / found)
    return blocks.flatten(-2)


def weights_of(kind: str, rows: Tensor) -> Tensor:
    """The float32 weights of uint8 [..., bytes of a row]."""
    size = next(each for each in TYPES.values() if each.name == kind)
    return dequantize(kind, torch.unflatten(rows, -1, (-1, size.block_bytes))).flatten(-2)


_FLOATS: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def _set_scale(kind: str, blocks: Tensor, scale: float) -> None:
    _write(blocks, _SCALE[kind], scale)
    if kind in _LEAST:
        place, factor = _LEAST[kind]
        _write(blocks, place, factor * scale)


def _write(blocks: Tensor, place: int, number: float) -> None:
    stored = torch.tensor([number], dtype=torch.float16).view(torch.uint8)
    blocks[..., place : place + 2] = stored
