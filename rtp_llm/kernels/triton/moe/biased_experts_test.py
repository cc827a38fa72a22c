# SPDX-License-Identifier: Apache-2.0
"""Experts with biases in Triton, in floats and MXFP4, against their references: every tile."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.kernels.triton.moe.biased_experts import down, gate_up
from rtp_llm.kernels.triton.moe.moe_experts import all_tiles
from rtp_llm.ops.moe.triton_biased_reference import (
    triton_biased_down_reference,
    triton_biased_gate_up_reference,
)
from rtp_llm.testing.gpu import captured

TILES = all_tiles(torch.device("cuda"))
ALPHA, LIMIT = 1.702, 2.0
every_size = pytest.mark.parametrize(
    ("tokens", "k", "experts", "hidden", "size"),
    [(1, 2, 8, 128, 64), (37, 3, 11, 224, 96), (130, 4, 32, 96, 160)],
)
in_mxfp4 = pytest.mark.parametrize("packed", [False, True], ids=["floats", "mxfp4"])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def weights(
    packed: bool, experts: int, rows: int, columns: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    if not packed:
        return (torch.randn(experts, rows, columns) * columns**-0.5).to(dtype), None
    blocks = torch.randint(256, (experts, rows, columns // 2), dtype=torch.uint8)
    scales = torch.randint(118, 124, (experts, rows, columns // 32), dtype=torch.uint8)
    return blocks.view(torch.int8), scales.view(torch.int8)


@in_mxfp4
@every_size
@pytest.mark.parametrize("tiles", range(len(TILES)))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_tile(
    tiles: int,
    dtype: torch.dtype,
    tokens: int,
    k: int,
    experts: int,
    hidden: int,
    size: int,
    packed: bool,
) -> None:
    ids, x = torch.randint(-1, experts, (tokens, k)).int(), torch.randn(tokens, hidden).to(dtype)
    rows, _, offsets = ops.sort_by_expert(ids, experts)
    first, first_scales = weights(packed, experts, 2 * size, hidden, dtype)
    second, second_scales = weights(packed, experts, hidden, size, dtype)
    first_bias, second_bias = torch.randn(experts, 2 * size), torch.randn(experts, hidden)
    given = (x, first, first_bias.to(dtype), rows, offsets, k, ALPHA, LIMIT, first_scales)
    gated, count = gate_up(*given, tile=TILES[tiles].gate_up), int(offsets[-1])
    expected = triton_biased_gate_up_reference(*given)
    torch.testing.assert_close(gated[:count], expected[:count], rtol=0.02, atol=0.03)
    after = (expected, second, second_bias.to(dtype), rows, offsets, second_scales)
    y = down(*after, tile=TILES[tiles].down)
    expected = triton_biased_down_reference(*after)
    torch.testing.assert_close(y[:count], expected[:count], rtol=0.02, atol=0.03)


@in_mxfp4
def test_a_graph_replays_with_other_entries(packed: bool) -> None:
    experts, hidden, size, tokens, k = 8, 128, 64, 9, 2
    dtype = torch.bfloat16
    first, scales = weights(packed, experts, 2 * size, hidden, dtype)
    bias, x = torch.randn(experts, 2 * size).to(dtype), torch.randn(tokens, hidden).to(dtype)
    ids = torch.randint(experts, (tokens, k)).int()

    def run() -> Tensor:
        rows, _, offsets = ops.sort_by_expert(ids, experts)
        return gate_up(x, first, bias, rows, offsets, k, ALPHA, LIMIT, scales)

    replay, out = captured(run)
    ids.copy_(torch.randint(experts, (tokens, k)))
    replay()
    assert torch.equal(out, run())
