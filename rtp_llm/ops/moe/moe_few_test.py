# SPDX-License-Identifier: Apache-2.0
"""Routing and sums of few tokens in few kernels, against the operators one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.moe.moe import TILE_ENTRIES
from rtp_llm.ops.moe.moe_reference import (
    select_topk_reference,
    sort_by_expert_reference,
    sum_experts_reference,
)
from rtp_llm.testing.operator_checks import DEVICE, assert_near, kernel_runs

NATIVE = ops.has_kernel("route_experts", DEVICE)
DTYPES = (torch.bfloat16, torch.float16)

native_only = pytest.mark.skipif(not NATIVE, reason="limits of kernels that this device lacks")


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Where there are no kernels, the references are tested."""
    torch.manual_seed(0)
    ops.allow_reference_ops(not NATIVE)
    yield
    ops.allow_reference_ops(False)


def expected_route(logits, x, gate, top_k, renormalize):
    """What the operators for any number of tokens give, the shared expert's column appended."""
    tokens, experts = logits.shape
    ids, weights = torch.empty(tokens, top_k).int(), torch.empty(tokens, top_k)
    select_topk_reference(logits, ids, weights, renormalize)
    if gate is not None:
        ids = torch.cat([ids, torch.full((tokens, 1), experts).int()], dim=1)
        share = (x.double() * gate.double()).sum(dim=1, keepdim=True).sigmoid()
        weights, experts = torch.cat([weights, share.float()], dim=1), experts + 1
    return ids, weights, *sort_by_expert_reference(ids, experts)


def assert_tiles(tiles, offsets, shared):
    """Every entry is in one tile, with others of its expert; the last expert's come first."""
    found = [(each >> 16, each & 0xFFFF) for each in tiles.tolist() if each >= 0]
    assert (tiles[len(found) :] == -1).all()
    begins, entries = offsets.tolist(), []
    for expert, first in found:
        last = min(first + TILE_ENTRIES, begins[expert + 1])
        assert begins[expert] <= first < last and (first - begins[expert]) % TILE_ENTRIES == 0
        entries += range(first, last)
    assert sorted(entries) == list(range(begins[-1]))
    experts = [expert for expert, _ in found]
    if shared:
        own = experts.count(len(begins) - 2)
        assert own > 0 and experts[:own] == [len(begins) - 2] * own
        experts = experts[own:]
    assert experts == sorted(experts)


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("tokens", "experts", "k", "hidden"),
    [
        (1, 1, 1, 8),
        (1, 512, 10, 2048),
        (2, 40, 16, 96),
        (4, 8, 2, 2056),
        (8, 128, 8, 4096),
        (9, 60, 4, 72),
        (16, 512, 10, 2048),
        (16, 1023, 16, 1024),
        (5, 33, 13, 64),
        (17, 512, 10, 2048),
        (63, 60, 4, 72),
        (64, 8, 2, 2056),
        (128, 1023, 16, 1024),
    ],
)
def test_route_is_selection_and_sort(tokens, experts, k, hidden, shared, renormalize):
    dtype = DTYPES[tokens % 2]
    wide = torch.randn(tokens, experts + 3) * 3
    logits, x = wide[:, :experts], torch.randn(tokens, hidden).to(dtype)
    gate = (torch.randn(1, hidden) / hidden**0.5).to(dtype) if shared else None
    actual = ops.route_experts(logits, x, gate, k, renormalize)
    ids, weights, rows, places, offsets = expected_route(logits, x, gate, k, renormalize)
    assert torch.equal(actual[1], rows)
    assert torch.equal(actual[2], places)
    assert torch.equal(actual[3], offsets)
    assert_tiles(actual[4], offsets, shared)
    assert_near(actual[0], weights)
    assert ids.shape == actual[2].shape


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("tokens", "experts", "k", "first", "count"),
    [
        (1, 128, 8, 64, 64),
        (1, 512, 1, 0, 8),  # most likely no expert here
        (7, 60, 4, 15, 15),
        (16, 1023, 16, 512, 511),
        (17, 128, 8, 0, 64),
        (64, 128, 8, 96, 32),
        (128, 1023, 16, 0, 1),
    ],
)
def test_entries_of_experts_elsewhere_are_left_out(tokens, experts, k, first, count, shared):
    logits, x = torch.randn(tokens, experts) * 3, torch.randn(tokens, 64).bfloat16()
    gate = torch.randn(1, 64).bfloat16() if shared else None
    actual = ops.route_experts(logits, x, gate, k, True, first, count)
    ids, weights, *_ = expected_route(logits, x, gate, k, True)
    is_shared = ids == experts
    here = torch.where((ids >= first) & (ids < first + count), ids - first, -1)
    here[is_shared] = count
    rows, places, offsets = sort_by_expert_reference(here, count + shared)
    entries = int(offsets[-1])
    assert_near(actual[0], weights)
    assert torch.equal(actual[1][:entries], rows[:entries])
    assert torch.equal(actual[2], places)
    assert torch.equal(actual[3], offsets)
    assert_tiles(actual[4], offsets, shared)


@pytest.mark.parametrize("tokens", [16, 128])
def test_equal_scores_go_to_the_lowest_ids(tokens):
    for experts in (40, 512):
        logits, x = torch.randint(0, 3, (tokens, experts)).float(), torch.zeros(tokens, 8)
        x = x.bfloat16()
        _, rows, places, offsets, _ = ops.route_experts(logits, x, None, 6, True)
        _, _, *expected = expected_route(logits, x, None, 6, True)
        for actual, each in zip((rows, places, offsets), expected, strict=True):
            assert torch.equal(actual, each)


@pytest.mark.parametrize("tokens", [16, 128])
def test_all_tokens_to_the_same_experts_keep_their_order(tokens):
    logits = torch.zeros(tokens, 512)
    logits[:, 100:103] = torch.tensor([3.0, 5.0, 4.0])
    x = torch.zeros(tokens, 8).bfloat16()
    _, rows, places, offsets, _ = ops.route_experts(logits, x, x[:1].contiguous(), 3, True)
    assert offsets[100:104].tolist() == [0, tokens, 2 * tokens, 3 * tokens]
    assert rows.tolist() == [4 * t + j for j in (2, 0, 1, 3) for t in range(tokens)]
    assert places[:, 0].tolist() == list(range(tokens, 2 * tokens))


def test_many_of_the_best_in_few_lanes():
    """Experts 5, 37, 69, ... are one lane's: all of its scores are above every other's."""
    logits, x = torch.randn(3, 512), torch.zeros(3, 8).bfloat16()
    logits[:, 5::32] += 100
    logits[:, 6::32] += 50
    actual = ops.route_experts(logits, x, None, 16, True)
    _, weights, rows, places, offsets = expected_route(logits, x, None, 16, True)
    assert_near(actual[0], weights)
    assert torch.equal(actual[3], offsets) and torch.equal(actual[2], places)
    assert torch.equal(actual[1], rows)


def test_numbers_that_are_none_still_give_experts():
    logits = torch.full((4, 32), torch.nan)
    logits[1] = -torch.inf
    logits[2, 5] = torch.inf
    logits[3] = 0.0
    _, rows, places, offsets, _ = ops.route_experts(
        logits, torch.zeros(4, 8).bfloat16(), None, 4, True
    )
    assert rows.sort().values.tolist() == list(range(16))
    assert places.flatten().sort().values.tolist() == list(range(16))
    assert offsets[-1] == 16 and (offsets.diff() >= 0).all() and (offsets.diff() <= 4).all()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("tokens", "k", "size"), [(1, 1, 1), (1, 11, 2048), (5, 9, 40), (16, 17, 4096), (3, 13, 7)]
)
def test_add_experts_is_the_sum_onto_the_residual(dtype, tokens, k, size):
    y = torch.randn(tokens * k, size).to(dtype)
    places = torch.randperm(tokens * k).view(tokens, k).int()
    places[0, 0] = -1
    weights = torch.rand(tokens, k)
    wide = torch.randn(tokens, size + 8).to(dtype)
    residual, outside = wide[:, :size], wide[:, size:].clone()
    sums = sum_experts_reference(y.float(), places, weights)
    expected = (residual.float() + sums).to(dtype)
    ops.add_experts(y, places, weights, residual)
    assert_near(residual, expected)
    assert torch.equal(wide[:, size:], outside)


def test_nothing():
    logits, x = torch.empty(0, 8), torch.empty(0, 16).bfloat16()
    weights, rows, places, offsets, tiles = ops.route_experts(logits, x, None, 4, True)
    assert weights.shape == places.shape == (0, 4)
    assert rows.shape == tiles.shape == (0,) and offsets.shape == (9,)
    ops.add_experts(torch.empty(0, 16), places, weights, torch.empty(0, 16))


@native_only
def test_the_kernels_run():
    logits, x = torch.randn(2, 8), torch.randn(2, 16).bfloat16()
    with kernel_runs("route_experts"):
        weights, _, places, _, _ = ops.route_experts(logits, x, None, 2, True)
    with kernel_runs("add_experts"):
        ops.add_experts(torch.randn(4, 16).bfloat16(), places, weights, x)


@native_only
def test_wrong_arguments_are_named():
    logits, x = torch.randn(2, 8), torch.randn(2, 16).bfloat16()
    with pytest.raises(RuntimeError, match="expected at most 128 tokens"):
        ops.route_experts(torch.randn(129, 8), torch.randn(129, 16).bfloat16(), None, 2, True)
    with pytest.raises(RuntimeError, match="top_k is 17; expected from 1 to 16"):
        ops.route_experts(torch.randn(2, 40), x, None, 17, True)
    with pytest.raises(RuntimeError, match="5 experts from 4 on, of 8"):
        ops.route_experts(logits, x, None, 2, True, 4, 5)
    with pytest.raises(RuntimeError, match="0 experts from 4 on, of 8"):
        ops.route_experts(logits, x, None, 2, True, 4)
    with pytest.raises(RuntimeError, match="route_experts: x is float32"):
        ops.route_experts(logits, x.float(), None, 2, True)
    with pytest.raises(RuntimeError, match="multiples of 16 bytes"):
        ops.route_experts(logits, x[:, :12].contiguous(), x[:1, :12].contiguous(), 2, True)
    with pytest.raises(RuntimeError, match="add_experts: residual"):
        ops.add_experts(x, torch.zeros(1, 2).int(), torch.ones(1, 2), x)
    assert x.isfinite().all()


def test_operators_are_traceable():
    tests = ("test_schema", "test_faketensor")
    logits, x = torch.randn(2, 8), torch.randn(2, 16).bfloat16()
    weights, _, places, _, _ = ops.route_experts(logits, x, x[:1].contiguous(), 2, True)
    y, library = torch.randn(6, 16).bfloat16(), torch.ops.rtp_llm
    for operator, args in [
        (library.route_experts, (logits, x, x[:1].contiguous(), 2, True)),
        (library.route_experts, (logits, x, None, 2, True)),
        (library.route_experts, (logits, x, x[:1].contiguous(), 2, True, 2, 4)),
        (library.add_experts, (y, places, weights, x)),
    ]:
        torch.library.opcheck(operator.default, args, test_utils=tests)
