# SPDX-License-Identifier: Apache-2.0
"""Routing and sorted products against their references: ties, groups, ids that are none."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from rtp_llm import compat, ops
from rtp_llm.ops.moe.moe_reference import (
    fake_balance_expert_reference,
    group_topk_reference,
    grouped_linear_reference,
    select_topk_reference,
    sort_by_expert_reference,
    sum_experts_reference,
)
from rtp_llm.testing.operator_checks import (
    FLOAT_DTYPES,
    ISAS,
    assert_near,
    cpu_only,
    kernel_runs,
    running,
)

ID_DTYPES = (torch.int32, torch.int64)

every_id_dtype = pytest.mark.parametrize("dtype", ID_DTYPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def results(tokens: int, k: int, dtype: torch.dtype = torch.int32) -> tuple[torch.Tensor, ...]:
    return torch.full((tokens, k), -7, dtype=dtype), torch.full((tokens, k), torch.nan)


@every_id_dtype
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(
    ("tokens", "experts", "k"),
    [(1, 1, 1), (5, 8, 2), (37, 60, 4), (130, 128, 8), (3, 256, 8), (9, 33, 33), (2, 1024, 16)],
)
def test_select_topk_equals_reference(dtype, renormalize, tokens, experts, k):
    logits = torch.randn(tokens, experts) * 3
    ids, weights = results(tokens, k, dtype)
    with kernel_runs("select_topk"):
        ops.select_topk(logits, ids, weights, renormalize)
    expected_ids, expected = results(tokens, k, dtype)
    select_topk_reference(logits, expected_ids, expected, renormalize)
    assert torch.equal(ids, expected_ids)
    assert_near(weights, expected)
    if renormalize:
        assert_near(weights.sum(dim=-1), torch.ones(tokens))


def test_equal_scores_go_to_the_lowest_ids():
    logits = torch.randint(0, 3, (64, 40)).float()
    ids, weights = results(64, 6)
    ops.select_topk(logits, ids, weights, True)
    expected_ids, expected = results(64, 6)
    select_topk_reference(logits, expected_ids, expected, True)
    assert torch.equal(ids, expected_ids)


def test_logits_of_a_wider_tensor_and_what_is_far_apart():
    logits = (torch.randn(20, 200) * 1e4)[:, 30:94]
    ids, weights = results(20, 3)
    ops.select_topk(logits, ids, weights, True)
    assert torch.equal(ids[:, 0].long(), logits.argmax(dim=-1))
    assert weights.isfinite().all()


def test_numbers_that_are_none_still_give_experts():
    logits = torch.full((4, 32), torch.nan)
    logits[1] = -torch.inf
    logits[2, 5] = torch.inf
    logits[3] = 0.0
    ids, weights = results(4, 4)
    ops.select_topk(logits, ids, weights, True)
    assert ((ids >= 0) & (ids < 32)).all()
    assert all(len(set(row)) == 4 for row in ids.tolist())


GROUPS = [(1, 1, 1), (8, 4, 2), (4, 1, 2), (16, 16, 1), (8, 3, 1)]


@every_id_dtype
@pytest.mark.parametrize("scoring", ["sigmoid", "softmax"])
@pytest.mark.parametrize(("groups", "top_groups", "best"), GROUPS)
@pytest.mark.parametrize("ties", [False, True])
def test_group_topk_equals_reference(dtype, scoring, groups, top_groups, best, ties):
    experts, k = 64, 6
    for tokens in (1, 77):
        logits = torch.randn(tokens, experts)
        bias = torch.randn(experts) * 0.3
        if ties:
            logits, bias = logits.round(), torch.zeros(experts)
        settings = {
            "scoring": scoring,
            "num_groups": groups,
            "top_groups": top_groups,
            "group_best": best,
            "renormalize": tokens > 1,
            "scaling": 2.5,
        }
        ids, weights = results(tokens, k, dtype)
        with kernel_runs("group_topk"):
            ops.group_topk(logits, bias, ids, weights, **settings)
        expected_ids, expected = results(tokens, k, dtype)
        group_topk_reference(logits, bias, expected_ids, expected, **settings)
        # Scores that are equal may differ in their last bits, sums of two of them twice.
        same = (ids == expected_ids).all(dim=-1)
        assert same.float().mean() > (0.9 if ties and scoring == "softmax" else 0.999)
        assert_near(weights[same], expected[same])


def test_one_group_without_bias_is_select_topk():
    logits = torch.randn(50, 96)
    grouped, selected = results(50, 8), results(50, 8)
    ops.group_topk(logits, None, *grouped, scoring="softmax", group_best=1, renormalize=False)
    ops.select_topk(logits, *selected, False)
    assert torch.equal(grouped[0], selected[0])
    assert_near(grouped[1], selected[1])


@every_id_dtype
@pytest.mark.parametrize(
    ("experts", "dp_rank", "dp_size", "ep_size"),
    [(8, 0, 1, 1), (128, 1, 4, 4), (64, 3, 4, 8), (16, 5, 8, 16), (24, 1, 2, 6), (6, 2, 3, 2)],
)
def test_fake_balance_equals_reference_and_hits_all(dtype, experts, dp_rank, dp_size, ep_size):
    settings = {"dp_rank": dp_rank, "dp_size": dp_size, "ep_size": ep_size}
    for shape in [(1, 3), (experts, 2), (7, 5)]:
        ids, scales = results(*shape, dtype)
        with kernel_runs("fake_balance_expert"):
            compat.FakeBalanceExpert(experts, 1, **settings)(ids, scales)
        expected_ids, expected = results(*shape, dtype)
        fake_balance_expert_reference(expected_ids, expected, experts, **settings)
        assert torch.equal(ids, expected_ids)
        assert torch.equal(scales, expected)
        flat = ids.flatten().tolist()
        for start in range(len(flat) - experts + 1):
            assert len(set(flat[start : start + experts])) == experts


def balanced_id(i: int, expert_num: int, dp_rank: int, dp_size: int, ep_size: int) -> int:
    """Entry i as the reference system has it, in exact arithmetic."""
    local = expert_num // ep_size
    rank0 = ep_size * dp_rank // dp_size
    expert0 = int(dp_rank * max(Fraction(local, dp_size), Fraction(1))) % local
    return (rank0 + i % ep_size) % ep_size * local + (expert0 + i // ep_size) % local


@every_id_dtype
@pytest.mark.parametrize("ep_size", [1, 2, 3, 8])
@pytest.mark.parametrize("dp_size", [1, 2, 3, 5, 8, 16])
def test_fake_balance_is_the_formula_on_every_rank(dtype, ep_size, dp_size):
    for local in (1, 2, 3, 7, 16):
        experts = ep_size * local
        k = min(3, experts)
        for dp_rank in range(dp_size):
            ids, scales = results(11, k, dtype)
            compat.FakeBalanceExpert(experts, k, dp_rank, dp_size, ep_size)(ids, scales)
            expected = [balanced_id(i, experts, dp_rank, dp_size, ep_size) for i in range(11 * k)]
            assert ids.flatten().tolist() == expected
            assert (scales == 1).all()


@pytest.mark.parametrize(
    ("tokens", "k", "experts"),
    [
        (1, 1, 1),
        (1, 8, 128),
        (50, 6, 64),
        (700, 8, 7),
        (3000, 4, 300),
        (16, 10, 512),
        (90, 3, 1024),
        (2049, 2, 40),
        (4096, 10, 512),
        (70000, 3, 9),
    ],
)
def test_sort_by_expert_equals_reference(tokens, k, experts):
    ids = torch.randint(-1, experts + 2, (tokens, k), dtype=torch.int32)
    with kernel_runs("sort_by_expert"):
        rows, places, offsets = ops.sort_by_expert(ids, experts)
    expected_rows, expected_places, expected_offsets = sort_by_expert_reference(ids, experts)
    assert torch.equal(offsets, expected_offsets)
    assert torch.equal(places, expected_places)
    assert torch.equal(rows[: int(offsets[-1])], expected_rows[: int(offsets[-1])])


def bounds(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("counts", "n", "k"), [([3], 5, 7), ([0, 4, 0, 1, 70, 0], 48, 96), ([1] * 9, 33, 64)]
)
def test_grouped_linear_equals_reference(isa, dtype, counts, n, k):
    rows = sum(counts)
    x, weight = torch.randn(rows + 2, k).to(dtype), torch.randn(len(counts), n, k).to(dtype)
    x[rows:] = torch.nan  # rows of no expert
    with running(isa), kernel_runs("grouped_linear"):
        actual = ops.grouped_linear(x, weight, bounds(counts))
    expected = grouped_linear_reference(x, weight, bounds(counts))
    limit = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 3e-3}[dtype]
    torch.testing.assert_close(actual[:rows], expected[:rows], rtol=limit, atol=limit * k**0.5)


@cpu_only
def test_a_row_gives_the_same_bits_as_in_a_product_of_its_own():
    counts = [2, 0, 31]
    x, weight = torch.randn(33, 80).bfloat16(), torch.randn(3, 20, 80).bfloat16()
    together = ops.grouped_linear(x, weight, bounds(counts))
    assert torch.equal(together[:2], ops.linear(x[:2], weight[0]))
    assert torch.equal(together[5:6], ops.linear(x[5:6], weight[2]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("tokens", "k", "size"), [(1, 1, 1), (5, 8, 33), (40, 2, 2048), (3, 6, 7), (7, 11, 96)]
)
def test_sum_experts_equals_reference(isa, dtype, tokens, k, size):
    y = torch.randn(tokens * k, size).to(dtype)
    places = torch.randperm(tokens * k).view(tokens, k).int()
    places[0, 0] = -1
    weights = torch.rand(tokens, k)
    with running(isa), kernel_runs("sum_experts"):
        actual = ops.sum_experts(y, places, weights)
    assert_near(actual, sum_experts_reference(y, places, weights))


def test_nothing():
    ids, weights = results(0, 4)
    ops.select_topk(torch.empty(0, 8), ids, weights, True)
    ops.group_topk(torch.empty(0, 8), None, ids, weights)
    ops.fake_balance_expert(ids, weights, expert_num=8, dp_rank=0, dp_size=1, ep_size=1)
    rows, places, offsets = ops.sort_by_expert(ids, 8)
    assert rows.shape == (0,) and offsets.tolist() == [0] * 9
    out = ops.grouped_linear(torch.empty(0, 16), torch.randn(8, 24, 16), offsets)
    assert out.shape == (0, 24)
    assert ops.sum_experts(out, places, weights).shape == (0, 24)


def test_wrong_arguments_are_named():
    logits, (ids, weights) = torch.zeros(2, 8), results(2, 4)
    with pytest.raises(RuntimeError, match=r"select_topk: ids is an unsupported dtype"):
        ops.select_topk(logits, ids.to(torch.int16), weights, True)
    with pytest.raises(RuntimeError, match=r"select_topk: logits is bfloat16"):
        ops.select_topk(logits.bfloat16(), ids, weights, True)
    with pytest.raises(RuntimeError, match=r"from 1 to as many columns"):
        ops.select_topk(logits[:, :3], ids, weights, True)
    with pytest.raises(RuntimeError, match=r"num_groups is 3; expected a divisor of the 8"):
        ops.group_topk(logits, None, ids, weights, num_groups=3)
    with pytest.raises(RuntimeError, match=r"top_groups is 1; expected groups with at least 4"):
        ops.group_topk(logits, None, ids, weights, num_groups=4)
    with pytest.raises(RuntimeError, match=r"scoring is 'tanh'"):
        ops.group_topk(logits, None, ids, weights, scoring="tanh")
    with pytest.raises(RuntimeError, match=r"expert_num is 7 and ep_size 2"):
        ops.fake_balance_expert(ids, weights, expert_num=7, dp_rank=0, dp_size=1, ep_size=2)
    with pytest.raises(ValueError, match=r"a multiple of ep_size"):
        compat.FakeBalanceExpert(7, 1, 0, 1, 2)
    with pytest.raises(RuntimeError, match=r"fake_balance_expert: scales"):
        ops.fake_balance_expert(
            ids, torch.zeros(4, 2).T, expert_num=8, dp_rank=0, dp_size=1, ep_size=1
        )
    with pytest.raises(RuntimeError, match=r"equal numbers of columns"):
        ops.grouped_linear(torch.zeros(2, 3), torch.zeros(1, 4, 5), bounds([2]))


@cpu_only
def test_indices_that_are_not_there():
    with pytest.raises(IndexError, match=r"offsets\[1\] is 3; expected from 0 to the 2 rows"):
        ops.grouped_linear(torch.zeros(2, 4), torch.zeros(1, 4, 4), bounds([3]))
    places = torch.tensor([[0, 2]], dtype=torch.int32)
    with pytest.raises(IndexError, match=r"places\[1\] is 2"):
        ops.sum_experts(torch.zeros(2, 4), places, torch.ones(1, 2))


def test_operators_are_traceable():
    tests = ("test_schema", "test_faketensor")
    logits, (ids, weights) = torch.randn(3, 8), results(3, 2)
    library = torch.ops.rtp_llm
    ops.select_topk(logits, ids, weights, True)
    _, places, offsets = ops.sort_by_expert(ids, 8)
    x = torch.randn(6, 16)
    for operator, args in [
        (library.select_topk, (logits, ids, weights, True)),
        (library.group_topk, (logits, None, ids, weights, "softmax", 2, 1, 1, True, 1.0)),
        (library.fake_balance_expert, (ids, weights, 8, 0, 1, 2)),
        (library.sort_by_expert, (ids, 8)),
        (library.grouped_linear, (x, torch.randn(8, 4, 16), offsets)),
        (library.sum_experts, (x, places, weights)),
    ]:
        torch.library.opcheck(operator.default, args, test_utils=tests)
