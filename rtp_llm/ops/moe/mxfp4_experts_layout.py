# SPDX-License-Identifier: Apache-2.0
"""Experts in MXFP4 in the order in which matrix instructions of 16 x 8 x 16 take them.

Panels of 32 weight rows by 64 columns are 1 KiB: two tiles of 16 rows, in which lane 4 g + t has
columns 8 t to 8 t + 7 of both blocks of 32, of rows g and g + 8, as four words, one for each
instruction. Of gated weights a tile has eight rows of the gate, then the same rows of up, so that
one lane has both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.moe.mxfp4_blocks import BIAS, E2M1

ROWS, COLUMNS = 32, 64
_TILES, _HALVES, _GROUPS, _LANES = 2, 2, 8, 4
# Codes are 2^-126 of their values before they meet a scale, which is at most 2^127 then.
_TINY = 126
MOST_EXPONENT = 254 - _TINY


def pack_experts(blocks: Tensor, scales: Tensor, gated: bool) -> None:
    """Reorder MXFP4 in place, expert by expert.

    Args:
        blocks: uint8 [E, N, K / 2], N a multiple of 32 and K of 64, the even number of a pair in
            the low four bits.
        scales: uint8 [E, N, K / 32], exponents with a bias of 127.
        gated: whether the first half of the rows is the gate, and the second up.

    Raises ValueError for a scale above 2, as which no published model has any.
    """
    experts, rows, pairs = blocks.shape
    order = _row_order(rows, gated).to(blocks.device)
    if scales.numel() and (most := int(scales.max())) > MOST_EXPONENT:
        raise ValueError(
            f"a scale of MXFP4 experts is 2^{most - BIAS}; expected at most "
            f"2^{MOST_EXPONENT - BIAS}; --moe-strategy triton_biased takes any"
        )
    for expert in range(experts):
        blocks[expert] = _pack_codes(blocks[expert][order]).view(rows, pairs)
        scales[expert] = _pack_scales(scales[expert][order]).view(scales.shape[1:])


def unpack_experts(weight: Tensor, scales: Tensor, gated: bool) -> Tensor:
    """The float32 [E, N, K] that packed experts stand for."""
    experts, rows, pairs = weight.shape
    panels, steps = rows // ROWS, 2 * pairs // COLUMNS
    words = weight.view(torch.int32).view(
        experts, panels, steps, _TILES, 1, _GROUPS, _LANES, 2, 2, 1
    )
    halves = torch.cat((words & 0xFFFF, words >> 16 & 0xFFFF), dim=-1)
    codes = [(halves >> 15 - 3 * pair & 1) << 3 | (halves >> 6 - 3 * pair & 7) for pair in range(3)]
    codes.append((halves >> 14 & 1) << 3 | (halves >> 13 & 1) << 2 | (halves >> 10 & 3))
    # Of each half of a tile the codes of its first two columns, then of the others.
    numbers = torch.cat([torch.stack(codes[half::2], dim=-2) for half in range(_HALVES)], dim=4)
    values = torch.tensor(E2M1, device=weight.device)[numbers]
    exponents = scales.to(torch.int32) - _TINY - BIAS
    exponents = exponents.view(experts, panels, steps, _TILES, _GROUPS, _HALVES, 2)
    exponents = exponents.permute(0, 1, 2, 3, 5, 4, 6)[..., None, :, None, None, None]
    wide = torch.ldexp(values, exponents).permute(0, 1, 3, 4, 5, 2, 7, 6, 8, 9, 10)
    flat = wide.reshape(experts, rows, 2 * pairs)
    return torch.empty_like(flat).index_copy_(1, _row_order(rows, gated).to(flat.device), flat)


def _row_order(rows: int, gated: bool) -> Tensor:
    """The row of each place: panels, tiles, halves of a tile, rows of a half."""
    if not gated:
        return torch.arange(rows)
    halves = torch.arange(rows).view(_HALVES, -1, _TILES, _GROUPS)
    return halves.permute(1, 2, 0, 3).reshape(-1)


def _pack_codes(blocks: Tensor) -> Tensor:
    """Words of eight codes, as bytes; the low half has the first column of each pair.

    Codes 0 to 2 have three bits each of the low nine and a sign above those, so that one shift
    makes a code the highest bits of a bfloat16; code 3 has what is left.
    """
    panels, steps = blocks.shape[0] // ROWS, blocks.shape[1] * 2 // COLUMNS
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).to(torch.int32)
    codes = codes.view(panels, _TILES, _HALVES, _GROUPS, steps, 2, _LANES, 2, 2, 2)
    sign, size = codes >> 3, codes & 7
    words = torch.zeros_like(codes[:, :, 0, ..., 0, 0])
    for pair in range(4):
        half, columns = pair % 2, pair // 2
        for which in range(2):
            at = (slice(None), slice(None), half, ..., columns, which)
            if pair < 3:
                bits = sign[at] << 15 - 3 * pair | size[at] << 6 - 3 * pair
            else:
                bits = sign[at] << 14 | size[at] >> 2 << 13 | (size[at] & 3) << 10
            words |= bits << 16 * which
    # From panels, tiles, rows, steps, blocks, lanes, instructions of a block.
    return words.permute(0, 3, 1, 2, 5, 4, 6).contiguous().view(torch.uint8)


def _pack_scales(scales: Tensor) -> Tensor:
    panels, steps = scales.shape[0] // ROWS, scales.shape[1] // 2
    exponents = (scales + _TINY).view(panels, _TILES, _HALVES, _GROUPS, steps, 2)
    return exponents.permute(0, 4, 1, 3, 2, 5).contiguous()
