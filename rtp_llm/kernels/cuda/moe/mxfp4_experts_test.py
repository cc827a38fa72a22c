# SPDX-License-Identifier: Apache-2.0
"""Experts in MXFP4 on tensor cores against their references, in each class of sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.moe.mxfp4_experts_layout import pack_experts
from rtp_llm.ops.moe.mxfp4_experts_reference import (
    mxfp4_experts_down_reference,
    mxfp4_experts_gate_up_reference,
)
from rtp_llm.testing.gpu import captured
from rtp_llm.testing.operator_checks import DEVICE, kernel_runs

NATIVE = ops.has_kernel("mxfp4_experts_gate_up", DEVICE)
pytestmark = pytest.mark.skipif(not NATIVE, reason="only NVIDIA's GPUs have the kernels")
ALPHA, LIMIT = 1.702, 2.0
# Tokens, experts of each, experts, hidden and intermediate size. The means of an expert, from 0 to
# 670 rows, are in every class of sizes.
SIZES = [
    (0, 2, 4, 64, 64),
    (1, 2, 8, 128, 64),
    (37, 3, 11, 192, 128),
    (65, 4, 33, 64, 192),
    (200, 4, 20, 192, 128),
    (300, 2, 3, 128, 448),
    (600, 4, 8, 192, 64),
    (1000, 2, 3, 64, 320),
]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def packed(experts: int, rows: int, columns: int, gated: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, scales and biases."""
    blocks = torch.randint(256, (experts, rows, columns // 2), dtype=torch.uint8)
    scales = torch.randint(118, 124, (experts, rows, columns // 32), dtype=torch.uint8)
    scales[:, rows // 2, 0] = 0
    pack_experts(blocks, scales, gated)
    bias = torch.randn(experts, rows).bfloat16()
    return blocks.view(torch.int8), scales.view(torch.int8), bias


@pytest.mark.parametrize(("tokens", "k", "experts", "hidden", "inner"), SIZES)
def test_every_size(tokens: int, k: int, experts: int, hidden: int, inner: int) -> None:
    ids, x = torch.randint(-1, experts, (tokens, k)).int(), torch.randn(tokens, hidden).bfloat16()
    rows, _, offsets = ops.sort_by_expert(ids, experts)
    given = (x, *packed(experts, 2 * inner, hidden, gated=True), rows, offsets, k, ALPHA, LIMIT)
    with kernel_runs("mxfp4_experts_gate_up"):
        gated = ops.mxfp4_experts_gate_up(*given)
    count, expected = int(offsets[-1]), mxfp4_experts_gate_up_reference(*given)
    torch.testing.assert_close(gated[:count], expected[:count], rtol=0.02, atol=0.03)
    after = (expected, *packed(experts, hidden, inner, gated=False), offsets)
    with kernel_runs("mxfp4_experts_down"):
        y = ops.mxfp4_experts_down(*after)
    expected = mxfp4_experts_down_reference(*after)
    torch.testing.assert_close(y[:count], expected[:count], rtol=0.02, atol=0.03)


def test_one_expert_has_all_rows() -> None:
    """No more tiles exist than the grid was made for, however uneven the experts are."""
    experts, hidden = 40, 64
    weights = packed(experts, hidden, hidden, gated=False)
    for rows in (1, 9, 200, 1300, 5300):
        x = torch.randn(rows, hidden).bfloat16()
        for expert in (0, 39):
            offsets = torch.zeros(experts + 1, dtype=torch.int32)
            offsets[expert + 1 :] = rows
            found = ops.mxfp4_experts_down(x, *weights, offsets)
            expected = mxfp4_experts_down_reference(x, *weights, offsets)
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.03)


@pytest.mark.parametrize("tokens", [9, 700])
def test_a_graph_replays_with_other_entries(tokens: int) -> None:
    experts, hidden, inner, k = 8, 128, 64, 2
    weights, x = packed(experts, 2 * inner, hidden, gated=True), torch.randn(tokens, hidden)
    ids, x = torch.randint(experts, (tokens, k)).int(), x.bfloat16()

    def run() -> Tensor:
        rows, _, offsets = ops.sort_by_expert(ids, experts)
        return ops.mxfp4_experts_gate_up(x, *weights, rows, offsets, k, ALPHA, LIMIT)

    replay, out = captured(run)
    ids.copy_(torch.randint(experts, (tokens, k)))
    replay()
    assert torch.equal(out, run())


def test_what_does_not_fit_is_named() -> None:
    weight, scales, bias = packed(2, 64, 128, gated=False)
    offsets = torch.tensor([0, 1, 3], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="panels of 32"):
        ops.mxfp4_experts_down(torch.zeros(3, 64).bfloat16(), weight, scales, bias, offsets)
    x = torch.zeros(3, 128).bfloat16()
    with pytest.raises(RuntimeError, match="mxfp4_experts: offsets"):
        ops.mxfp4_experts_down(x, weight, scales, bias, offsets[:2])
    with pytest.raises(RuntimeError, match="mxfp4_experts: x and bias"):
        ops.mxfp4_experts_down(x.float(), weight, scales, bias, offsets)
