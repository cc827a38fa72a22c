# SPDX-License-Identifier: Apache-2.0
"""Packed experts stand for the numbers that they were made from."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.ops.moe.mxfp4_blocks import dequantize_rows
from rtp_llm.ops.moe.mxfp4_experts_layout import pack_experts, unpack_experts


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("experts", "rows", "columns"), [(1, 32, 64), (3, 96, 192), (0, 32, 64)])
def test_all_codes_and_scales_come_back(gated: bool, experts: int, rows: int, columns: int) -> None:
    torch.manual_seed(0)
    blocks = torch.randint(256, (experts, rows, columns // 2), dtype=torch.uint8)
    scales = torch.randint(0, 129, (experts, rows, columns // 32), dtype=torch.uint8)
    flat = dequantize_rows(blocks.flatten(0, 1), scales.flatten(0, 1))
    pack_experts(blocks, scales, gated)
    assert torch.equal(unpack_experts(blocks, scales, gated), flat.view(experts, rows, columns))


def test_scales_that_a_bfloat16_cannot_reach_are_refused() -> None:
    blocks = torch.zeros(1, 32, 32, dtype=torch.uint8)
    scales = torch.full((1, 32, 2), 129, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"2\^2; expected at most 2\^1; --moe-strategy"):
        pack_experts(blocks, scales, gated=False)
