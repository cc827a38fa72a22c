# SPDX-License-Identifier: Apache-2.0
"""The references of sums over ranks, on any device."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.ops.collective.all_reduce_reference import (
    add_rms_norm_of_parts,
    all_reduce_add_rms_norm_fp8_reference,
    all_reduce_add_rms_norm_reference,
    all_reduce_reference,
    sum_of_parts,
)
from rtp_llm.ops.fp8.fp8_norm_reference import norm_fp8_reference
from rtp_llm.ops.norm.norm_reference import fused_add_rms_norm_reference

EPS = 1e-6


def test_a_sum_is_in_the_order_of_ranks_and_no_zero_has_a_sign() -> None:
    parts = [torch.tensor([value, -0.0]).bfloat16() for value in (2.0**30, 1.0, -(2.0**30))]
    total = sum_of_parts(parts)
    assert total.tolist() == [0.0, 0.0] and not torch.signbit(total).any()
    assert sum_of_parts([parts[0], parts[2], parts[1]])[0] == 1


def test_only_the_residual_is_rounded() -> None:
    # A sum that was rounded first would be 1, and 256 + 1 rounds to 256.
    parts = [torch.full((1, 8), value).bfloat16() for value in (1.0, 2.0**-9)]
    weight, residual = torch.ones(8).bfloat16(), torch.full((1, 8), 256.0).bfloat16()
    normed, total = add_rms_norm_of_parts(parts, residual, weight, EPS, 0.0)
    assert total[0, 0] == 258 and normed[0, 0] == 1


def test_the_reference_of_one_rank_is_that_without_ranks() -> None:
    x, residual, weight = torch.randn(3, 128), torch.randn(3, 128), torch.randn(128)
    mine, added, alone = x.clone(), residual.clone(), torch.zeros(2, dtype=torch.int64)
    numbers, scales = all_reduce_add_rms_norm_fp8_reference(
        x, added, weight, EPS, 1.0, alone, alone, 0, 1024
    )
    quantised = norm_fp8_reference(residual.clone(), x, weight, EPS, 1.0)
    assert torch.equal(numbers.float(), quantised[0].float())
    assert torch.equal(scales, quantised[1]) and torch.equal(added, residual + x)
    added.copy_(residual)
    all_reduce_add_rms_norm_reference(mine, added, weight, EPS, 1.0, alone, alone, 0, 1024)
    fused_add_rms_norm_reference(x, residual, weight, EPS, 1.0)
    assert torch.equal(mine, x) and torch.equal(added, residual)
    all_reduce_reference(x, alone, alone, 0, 1024)
    assert torch.equal(mine, x)
    with pytest.raises(RuntimeError, match="of one rank, not of 2"):
        all_reduce_reference(x, torch.zeros(3), alone, 0, 1024)
