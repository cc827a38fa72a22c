# SPDX-License-Identifier: Apache-2.0
"""MXFP4 blocks against transformers' own numbers for them."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.ops.moe.mxfp4_blocks import BLOCK, E2M1, dequantize_rows
from rtp_llm.quantization.mxfp4 import quantize_rows
from rtp_llm.testing.light_transformers import light_transformers

with light_transformers():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_code_and_scale_is_what_transformers_makes_of_it(dtype: torch.dtype) -> None:
    """All bytes under all scales, from numbers below float32's smallest to infinity."""
    scales = torch.arange(256, dtype=torch.uint8).view(1, 32, 8)
    blocks = torch.randint(256, (1, 32, 8, BLOCK // 2), dtype=torch.uint8)
    blocks.view(-1)[:256] = torch.arange(256, dtype=torch.uint8)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=dtype)[0].T
    ours = dequantize_rows(blocks.view(32, -1), scales[0]).to(dtype)
    assert torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


def test_rows_in_parts_have_their_own_scales() -> None:
    blocks, scales = quantize_rows(torch.randn(7, 96))
    whole = dequantize_rows(blocks, scales)
    assert torch.equal(dequantize_rows(blocks[3:5], scales, 3), whole[3:5])


def test_quantising_takes_the_nearest_number() -> None:
    exact = torch.tensor(E2M1).repeat(2, 4) * torch.tensor([[0.25], [1024.0]])
    assert torch.equal(dequantize_rows(*quantize_rows(exact)), exact)
    weight = torch.randn(20, 64)
    found = dequantize_rows(*quantize_rows(weight))
    scales = torch.ldexp(torch.ones(20, 2), quantize_rows(weight)[1].int() - 127)
    candidates = torch.tensor(E2M1) * scales.repeat_interleave(BLOCK, 1).unsqueeze(-1)
    nearest = (candidates - weight.unsqueeze(-1)).abs().amin(-1)
    assert torch.equal((found - weight).abs(), nearest)
