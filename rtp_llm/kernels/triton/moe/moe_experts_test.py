# SPDX-License-Identifier: Apache-2.0
"""Grouped products in Triton against the reference: every tile, every distribution, graphs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.kernels.triton.moe.moe_experts import (
    TILE_ENTRIES,
    all_tiles,
    choose_tiles,
    down,
    gate_up,
    tile_bound,
)
from rtp_llm.ops.fp8.fp8_channel_reference import quantize_tokens
from rtp_llm.ops.moe import moe
from rtp_llm.ops.moe.triton_moe_reference import triton_down_reference, triton_gate_up_reference
from rtp_llm.testing.gpu import captured

TILES = all_tiles(torch.device("cuda"))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def expected(x, gate_up_weight, down_weight, ids):
    """float32 rows of each entry, in the order of the entries."""
    rows = []
    for entry, expert in enumerate(ids.flatten().tolist()):
        if expert < 0:
            rows.append(torch.zeros(down_weight.shape[1]))
            continue
        gate, up = (x[entry // ids.shape[1]].float() @ gate_up_weight[expert].float().T).chunk(2)
        gated = (functional.silu(gate) * up).to(x.dtype).float()
        rows.append(gated @ down_weight[expert].float().T)
    return torch.stack(rows)


def run(x, gate_up_weight, down_weight, ids, tiles):
    rows, places, offsets = ops.sort_by_expert(ids, gate_up_weight.shape[0])
    gated = gate_up(x, gate_up_weight, rows, offsets, ids.shape[1], tile=tiles.gate_up)
    y = down(gated, down_weight, rows, offsets, tile=tiles.down)
    return ops.sum_experts(y, places, torch.ones(ids.shape))


def weights(experts, hidden, size, dtype=torch.bfloat16):
    first = torch.randn(experts, 2 * size, hidden) * hidden**-0.5
    return first.to(dtype), (torch.randn(experts, hidden, size) * size**-0.5).to(dtype)


DISTRIBUTIONS = {
    "random": lambda tokens, k, experts: torch.rand(tokens, experts).topk(k).indices,
    "one": lambda tokens, k, experts: torch.full((tokens, k), experts - 2),
    "some": lambda tokens, k, experts: torch.randint(-1, experts, (tokens, k)),
    "none": lambda tokens, k, experts: torch.full((tokens, k), -1),
}


@pytest.mark.parametrize("tiles", range(len(TILES)))
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("tokens", "k", "experts", "hidden", "size"),
    [(1, 2, 8, 128, 64), (37, 3, 11, 200, 72), (130, 1, 64, 64, 48), (65, 8, 256, 96, 128)],
)
def test_every_tile_and_distribution(tiles, kind, tokens, k, experts, hidden, size):
    ids = DISTRIBUTIONS[kind](tokens, k, experts).int()
    x, (first, second) = torch.randn(tokens, hidden).bfloat16(), weights(experts, hidden, size)
    actual = run(x, first, second, ids, TILES[tiles])
    exact = expected(x, first, second, ids).view(tokens, k, hidden).sum(dim=1)
    torch.testing.assert_close(actual.float(), exact, rtol=0.02, atol=0.04)


@pytest.mark.parametrize("tiles", range(len(TILES)))
@pytest.mark.parametrize(
    ("tokens", "k", "experts", "hidden", "size"),
    [(1, 2, 8, 128, 64), (16, 3, 11, 200, 72), (40, 8, 256, 96, 128)],
)
def test_an_expert_with_weights_of_its_own(tiles, tokens, k, experts, hidden, size):
    """What the last of so many experts is given apart is what the stack gives."""
    x, (first, second) = torch.randn(tokens, hidden).bfloat16(), weights(experts, hidden, size)
    ids = torch.rand(tokens, experts - 1).topk(k).indices.int()
    ids = torch.cat([ids, torch.full((tokens, 1), experts - 1).int()], dim=1)
    rows, _, offsets = ops.sort_by_expert(ids, experts)
    own = first[-1].clone(), second[-1].clone()
    tile = TILES[tiles]
    gated = gate_up(x, first[:-1], rows, offsets, k + 1, own[0], tile=tile.gate_up)
    y = down(gated, second[:-1], rows, offsets, own[1], tile=tile.down)
    expected_gated = gate_up(x, first, rows, offsets, k + 1, tile=tile.gate_up)
    assert torch.equal(gated, expected_gated)
    assert torch.equal(y, down(gated, second, rows, offsets, tile=tile.down))


@pytest.mark.parametrize(
    ("tokens", "k", "experts", "hidden", "size"),
    [(1, 2, 8, 128, 64), (37, 3, 11, 200, 72), (64, 8, 256, 96, 128)],
)
@pytest.mark.parametrize("shared", [False, True])
def test_tiles_that_are_given_are_those_that_are_found(tokens, k, experts, hidden, size, shared):
    x, (first, second) = torch.randn(tokens, hidden).bfloat16(), weights(experts + 1, hidden, size)
    own = (first[-1], second[-1]) if shared else (None, None)
    first, second = first[:-1], second[:-1]
    gate = torch.randn(1, hidden).bfloat16() if shared else None
    logits = torch.randn(tokens, experts)
    _, rows, places, offsets, tiles = ops.route_experts(logits, x, gate, k, True)
    assert TILE_ENTRIES == moe.TILE_ENTRIES == TILES[0].down.rows
    for tile in (TILES[0], TILES[1]):  # the second has more rows, and finds them
        found = gate_up(x, first, rows, offsets, places.shape[1], own[0], tile=tile.gate_up)
        given = gate_up(x, first, rows, offsets, places.shape[1], own[0], tiles, tile=tile.gate_up)
        assert torch.equal(given, found)
        y = down(found, second, rows, offsets, own[1], tile=tile.down)
        assert torch.equal(down(found, second, rows, offsets, own[1], tiles, tile=tile.down), y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_number_types(dtype):
    ids = torch.rand(20, 16).topk(4).indices.int()
    x, (first, second) = torch.randn(20, 256).to(dtype), weights(16, 256, 128, dtype)
    exact = expected(x, first, second, ids).view(20, 4, 256).sum(dim=1)
    actual = run(x, first, second, ids, choose_tiles(80, 16, x.device))
    torch.testing.assert_close(actual.float(), exact, rtol=0.02, atol=0.04)


@pytest.mark.parametrize("tiles", range(len(TILES)))
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("tokens", "k", "experts", "hidden", "size"),
    [(1, 2, 8, 128, 64), (37, 3, 11, 200, 72), (130, 1, 64, 64, 48)],
)
def test_fp8_with_scales_of_rows(tiles, kind, tokens, k, experts, hidden, size):
    ids = DISTRIBUTIONS[kind](tokens, k, experts).int()
    stored = [quantize_tokens(each) for each in weights(experts, hidden, size)]
    (first, first_scales), (second, second_scales) = stored
    x, x_scales = quantize_tokens(torch.randn(tokens, hidden) * torch.randn(tokens, 1).exp())
    rows, _, offsets = ops.sort_by_expert(ids, experts)
    tile, entries = TILES[tiles], int(offsets[-1])
    scales = {"x_scales": x_scales, "weight_scales": first_scales}
    gated = gate_up(x, first, rows, offsets, k, tile=tile.gate_up, **scales)
    exact = triton_gate_up_reference(x, first, rows, offsets, k, **scales)
    assert gated.dtype is torch.bfloat16
    torch.testing.assert_close(gated[:entries], exact[:entries], rtol=0.02, atol=0.04)
    x, x_scales = quantize_tokens(exact)
    scales = {"x_scales": x_scales, "weight_scales": second_scales}
    y = down(x, second, rows, offsets, tile=tile.down, **scales)
    exact = triton_down_reference(x, second, rows, offsets, **scales)
    torch.testing.assert_close(y[:entries], exact[:entries], rtol=0.02, atol=0.04)


def test_replays_follow_the_selection():
    x, (first, second) = torch.randn(6, 128).bfloat16(), weights(16, 128, 64)
    ids = torch.zeros(6, 2, dtype=torch.int32)
    replay, result = captured(lambda: run(x, first, second, ids, TILES[0]))
    for _ in range(3):
        ids.copy_(torch.rand(6, 16).topk(2).indices)
        replay()
        exact = expected(x, first, second, ids).view(6, 2, 128).sum(dim=1)
        torch.testing.assert_close(result.float(), exact, rtol=0.02, atol=0.04)


@pytest.mark.parametrize("room", [227, 163, 99, 48])
def test_tiles_fit_the_shared_memory(monkeypatch, room):
    module = "rtp_llm.kernels.triton.moe.moe_experts.shared_memory"
    monkeypatch.setattr(module, lambda device: room << 10)
    for tiles in all_tiles(torch.device("cuda")):
        for tile, weights in ((tiles.gate_up, 2), (tiles.down, 1)):
            assert tile.stages >= 2 and tile.columns >= 16
            used = tile.stages * tile.step * (tile.rows + weights * tile.columns) * 2
            assert used <= (room - 8) << 10


def test_the_bound_of_tiles_holds_for_every_distribution():
    for rows in (16, 128):
        for experts in (1, 5, 64):
            for entries in (1, 7, 40, 1000):
                counts = torch.rand(200, experts).softmax(dim=-1)
                counts = torch.multinomial(counts, entries, replacement=True)
                for drawn in counts.cpu():
                    needed = -(-torch.bincount(drawn, minlength=experts) // rows)
                    assert needed.sum() <= tile_bound(entries, experts, rows)
