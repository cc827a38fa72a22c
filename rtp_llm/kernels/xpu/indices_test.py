# SPDX-License-Identifier: Apache-2.0
"""Indices that a kernel cannot refuse: nothing outside is touched, and a lost row is NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rtp_llm import ops
from rtp_llm.testing.operator_checks import FLOAT_DTYPES
from rtp_llm.testing.paged_batches import PagedBatch, Shape
from rtp_llm.testing.xpu import bridge  # noqa: F401 (loads the bridge)

SLOTS, POSITIONS, LARGEST = 40, 16, 2**31 - 1


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def _int32(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def rope_case() -> dict[str, Any]:
    return {
        "qkv": torch.randn(4, 64),
        "positions": torch.arange(4, dtype=torch.int32),
        "cos_sin": torch.randn(POSITIONS, 16),
        "kv_cache": torch.zeros(2, SLOTS // 4, 4, 1, 16),
        "slot_mapping": torch.tensor([7, 3, 39, 0], dtype=torch.int32),
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 16,
        "is_neox": True,
    }


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("bad", [-1, 5, LARGEST])
def test_id_outside_the_table_gives_a_row_of_nan(dtype: torch.dtype, bad: int) -> None:
    table = torch.randn(5, 40).to(dtype)
    out = ops.embedding(torch.tensor([0, bad, 4], dtype=torch.int32), table)
    assert torch.equal(out[[0, 2]], table[[0, 4]])
    assert out[1].isnan().all()


def test_token_of_a_row_outside_stays_as_it_is() -> None:
    ids = torch.tensor([4, -1, -3, -4, -LARGEST], dtype=torch.int32)
    ops.substitute_tokens(ids, torch.tensor([7, 8, 9], dtype=torch.int32))
    assert ids.tolist() == [4, 7, 9, -4, -LARGEST]


@pytest.mark.parametrize("bad", [-1, POSITIONS, LARGEST])
def test_position_outside_the_table_gives_nan_in_its_token_alone(bad: int) -> None:
    case = rope_case()
    case["positions"][2] = bad
    ops.rope_kv_write(**case)
    heads = case["qkv"].view(4, 4, 16)
    assert heads[2, :3].isnan().all()
    assert not heads[[0, 1, 3]].isnan().any()
    assert not heads[2, 3].isnan().any()


@pytest.mark.parametrize("bad", [-7, SLOTS, LARGEST])
def test_slot_outside_the_cache_is_not_stored(bad: int) -> None:
    case = rope_case()
    case["slot_mapping"][1] = bad
    ops.rope_kv_write(**case)
    stored = case["kv_cache"][0].flatten(0, 1).abs().sum(dim=(1, 2)) > 0
    assert stored.nonzero().flatten().tolist() == [0, 7, 39]


def test_pair_of_blocks_outside_the_cache_is_left_out() -> None:
    cache = torch.randn(1, 2, 6, 4, 1, 8)
    before = cache.clone()
    ops.copy_blocks(cache, torch.tensor([[0, 6], [-1, 2], [3, 5]], dtype=torch.int32))
    before[:, :, 5] = before[:, :, 3]
    assert torch.equal(cache, before)


def test_block_outside_the_cache_counts_as_none() -> None:
    batch = PagedBatch.random([(2, 60)], Shape(), torch.float32)
    batch.block_table[0, 1] = -1
    expected = batch.run()
    batch.block_table[0, 1] = 10**6
    assert torch.equal(batch.run(), expected)


def test_bias_for_a_row_that_is_not_there_is_ignored() -> None:
    logits = torch.zeros(3, 4)
    rows = torch.tensor([0, 3, -1, LARGEST], dtype=torch.int32)
    ops.add_logit_bias(logits, rows, torch.ones(4, dtype=torch.int32), torch.ones(4))
    assert logits.sum() == 1


def test_mask_for_a_row_that_is_not_there_is_ignored() -> None:
    logits = torch.zeros(3, 4)
    rows = torch.tensor([0, 3, -1, LARGEST], dtype=torch.int32)
    ops.apply_token_bitmask(logits, torch.zeros(4, 1, dtype=torch.int32), rows)
    assert logits.isinf().sum(1).tolist() == [4, 0, 0]


@pytest.mark.parametrize("cu", [[0, 4, 9], [-3, 2, 5], [0, 7, 2]], ids=str)
def test_history_outside_its_tokens_is_not_read(cu: list[int]) -> None:
    logits, one = torch.ones(2, 4), torch.ones(2)
    tokens = torch.tensor([0, 1, 2, 3, 0], dtype=torch.int32)
    bounds = torch.tensor(cu, dtype=torch.int32)
    far = torch.tensor([-(2**40), 2**40])
    ops.apply_penalties(logits, tokens, bounds, far, one, one, one)
    ops.ban_repeated_ngrams(logits, tokens, bounds, torch.full((2,), 2, dtype=torch.int32))
    assert not logits.isnan().any()


def test_sizes_beyond_the_kernels_are_refused() -> None:
    batch = PagedBatch.random([(1, 3)], Shape(head_dim=257), torch.float32)
    with pytest.raises(RuntimeError, match="expected heads of at most 256 elements"):
        batch.run()
    settings = [torch.zeros(0, dtype=dtype) for dtype in (torch.float32, torch.int32)]
    steps = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="keep sums of weights exact"):
        ops.sample(torch.empty(0, 2**23 + 1), *settings, *settings[:1] * 2, steps, steps)


@pytest.mark.parametrize("read", [9, -2, LARGEST], ids=str)
def test_states_that_are_not_there(read: int) -> None:
    """Their sequence is lost, the other one is not."""
    cu_seqlens, lengths = _int32([0, 2, 4]), _int32([2, 2])
    x, weight = torch.randn(4, 32), torch.randn(32, 4)
    kept = torch.randn(3, 8, 32)
    convolved = []
    for first in (-1, read):
        inputs = kept.clone()
        blocks = _int32([first, -1]), _int32([0, 1])
        convolved.append(ops.causal_conv1d(x, weight, inputs, cu_seqlens, lengths, *blocks, 2))
        assert torch.equal(inputs[0], kept[0]) == (first == read) and inputs[2].equal(kept[2])
    assert convolved[1][:2].isnan().all() and convolved[1][2:].equal(convolved[0][2:])
    qkv, ba = torch.randn(4, 2 * 16 + 2 * 8), torch.randn(4, 4)
    found = []
    for first in (-1, read):
        states = [torch.zeros(3, 2, 8, 16), torch.zeros(3, 8, 1, 16), torch.zeros(3, 8, 2, 8)]
        states += [torch.zeros(3, 8, 2), torch.zeros(3, 2, 1, dtype=torch.int32)]
        blocks = _int32([first, -1]), _int32([0, 1])
        constants = torch.zeros(2), torch.zeros(2)
        indices = cu_seqlens, lengths, *blocks, 2
        found.append(ops.gated_delta_rule(qkv, ba, *constants, *states, *indices))
        assert bool(states[1][0].any()) == (first == -1)
    assert found[1][:2].isnan().all() and found[1][2:].equal(found[0][2:])


def test_places_and_ids_of_no_expert() -> None:
    y, weights = torch.ones(2, 40), torch.ones(3, 1)
    total = ops.sum_experts(y, _int32([[0], [2], [-1]]), weights)
    assert total[0].equal(y[0]) and total[1].isnan().all() and not total[2].any()
    rows, places, offsets = ops.sort_by_expert(_int32([[LARGEST], [1], [-7]]), 2)
    assert (rows[0], offsets.tolist()) == (1, [0, 0, 1]) and places.tolist() == [[-1], [0], [-1]]
