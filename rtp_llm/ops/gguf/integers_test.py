# SPDX-License-Identifier: Apache-2.0
"""Integers of GGUF blocks stand for the same weights as the blocks, also in tiles for a GPU."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.gguf.types import TYPES
from rtp_llm.ops.gemm.tiled_wna16_layout import empty_codes, put_codes, unpack, with_numbers
from rtp_llm.ops.gguf.blocks import dequantize
from rtp_llm.ops.gguf.integers import INTEGERS
from rtp_llm.testing.gguf.random_blocks import random_blocks

KINDS = {kind.name: kind for kind in TYPES.values()}
ROWS, COLUMNS = 48, 512


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_and_tiles_stand_for_the_weights_of_blocks(name: str) -> None:
    kind, integers = KINDS[name], INTEGERS[name]
    with torch.device("cpu"):
        blocks = torch.from_numpy(random_blocks(kind, ROWS * COLUMNS // kind.elements))
    blocks = blocks.view(ROWS, -1, kind.block_bytes)
    expected = dequantize(name, blocks).flatten(1)
    parts = integers.split(blocks)
    codes, scale, zero = (each if each is None else each.flatten(1) for each in parts)
    assert codes.dtype is torch.uint8 and int(codes.max()) < 1 << integers.bits
    assert (zero is not None) == integers.zeros
    assert scale.shape == (ROWS, COLUMNS // integers.group)
    wide = scale.repeat_interleave(integers.group, 1)
    found = wide * (codes.float() - (1 << integers.bits - 1))
    if zero is None:
        assert torch.equal(found, expected)
    else:
        shifts = zero.repeat_interleave(integers.group, 1)
        sizes = wide.abs() * (1 << integers.bits) + shifts.abs()
        assert ((found + shifts - expected).abs() <= 1e-6 * sizes).all()
    packed = empty_codes(ROWS, COLUMNS, integers.bits, codes.device)
    put_codes(packed, 0, codes[:16], integers.bits)
    put_codes(packed, 16, codes[16:], integers.bits)
    tiled = with_numbers(packed, COLUMNS, scale, zero)
    floats = unpack(tiled, integers.bits)
    if name in ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL"):  # whose scales are float16 in the file
        assert torch.equal(floats, expected)
    assert (floats - expected).norm() < 4e-4 * expected.norm()
    kept = [0 if each is None else each.nbytes for each in tiled]
    assert sum(kept) == integers.num_bytes(ROWS * COLUMNS)
