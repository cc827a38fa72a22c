# SPDX-License-Identifier: Apache-2.0
"""The lightning indexer: cache write, logits and selection against references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.mla.indexer_reference import (
    indexer_rotate_and_store_reference,
    paged_mqa_logits_reference,
    top_k_slots_reference,
)
from rtp_llm.testing.operator_checks import (
    FLOAT_DTYPES,
    ISAS,
    TORCH_TYPE,
    assert_near,
    cpu_only,
    kernel_runs,
    running,
)

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}

every_isa = pytest.mark.parametrize("isa", ISAS)
every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
pytestmark = pytest.mark.skipif(
    not ops.has_kernel("top_k_slots", TORCH_TYPE), reason="this device has no such kernel"
)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@every_isa
@every_dtype
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(
    ("tokens", "heads", "dim", "rope"),
    [(5, 3, 24, 8), (7, 1, 33, 2), (6, 4, 128, 64), (0, 2, 8, 8)],
)
def test_write_equals_reference(
    isa: str, dtype: torch.dtype, is_neox: bool, tokens: int, heads: int, dim: int, rope: int
) -> None:
    wide_q = torch.randn(tokens, heads, dim + 3).to(dtype)
    k = (torch.randn(tokens, dim + 5) + 2).to(dtype)[:, 5:]
    weight, bias = (torch.randn(2, dim) + 1).to(dtype)
    cos_sin = torch.randn(40, rope)
    positions = torch.randint(0, 40, (tokens,), dtype=torch.int32)
    slots = torch.randperm(tokens // 4 * 8 + 16)[:tokens].int()
    slots[2:3] = -1
    cache = torch.full((tokens // 4 + 2, 8, dim), 7.0, dtype=dtype)
    q = wide_q[..., 3:]
    expected_q, expected = q.double().clone(), cache.double()
    indexer_rotate_and_store_reference(
        expected_q,
        k.double(),
        weight.double(),
        bias.double(),
        1e-6,
        cos_sin.double(),
        positions,
        expected,
        slots,
        is_neox,
    )
    with running(isa), kernel_runs("indexer_rotate_and_store"):
        ops.indexer_rotate_and_store(
            q, k, weight, bias, 1e-6, cos_sin, positions, cache, slots, is_neox
        )
    # Keys are rounded after the norm too, as other implementations do.
    assert_near(q.double(), expected_q, TOLERANCES[dtype])
    assert_near(cache.double(), expected, 2 * TOLERANCES[dtype])


def batch(
    lengths: list[tuple[int, int]], block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Sequences, visible keys, two tables and the number of blocks, for (new tokens, keys) of each
    sequence and two tokens of padding at the end."""
    sequences, visible = [], []
    for number, (new, keys) in enumerate(lengths):
        sequences += [number] * new
        visible += range(keys - new + 1, keys + 1)
    sequences += [len(lengths)] * 2
    visible += [0, 3]
    width = max(-(-keys // block_size) for _, keys in lengths) + 1
    blocks = len(lengths) * width + 3
    tables = [torch.randperm(blocks)[: len(lengths) * width].view(-1, width) for _ in range(2)]
    numbers = (torch.tensor(sequences), torch.tensor(visible), *tables)
    first, second, third, fourth = (each.int() for each in numbers)
    return first, second, third, fourth, blocks


LENGTHS = [(1, 1), (1, 130), (5, 5), (9, 300), (1, 129), (3, 20)]


@every_isa
@every_dtype
@pytest.mark.parametrize(("heads", "dim", "block_size"), [(3, 24, 4), (1, 7, 16), (8, 128, 64)])
def test_logits_equal_reference(
    isa: str, dtype: torch.dtype, heads: int, dim: int, block_size: int
) -> None:
    sequences, visible, table, _, blocks = batch(LENGTHS, block_size)
    q = torch.randn(len(sequences), heads + 1, dim).to(dtype)[:, 1:]
    weights = torch.randn(len(sequences), heads + 2).to(dtype)[:, 2:]
    cache = torch.randn(blocks, block_size, dim).to(dtype)
    width = 300
    wide = (q.double(), weights.double(), cache.double())
    expected = paged_mqa_logits_reference(*wide, sequences, visible, table, width)
    with running(isa), kernel_runs("paged_mqa_logits"):
        actual = ops.paged_mqa_logits(q, weights, cache, sequences, visible, table, width)
    scale = float(expected[expected.isfinite()].abs().max())
    assert torch.equal(actual.isinf(), expected.isinf())
    assert_near(
        (actual / scale).nan_to_num(neginf=0).double(),
        (expected / scale).nan_to_num(neginf=0),
        1e-5,
    )


@pytest.mark.parametrize("kind", ["random", "ties", "zeros", "infinite"])
@pytest.mark.parametrize("top_k", [1, 7, 64, 400])
def test_selection_equals_reference(kind: str, top_k: int) -> None:
    sequences, visible, _, table, blocks = batch(LENGTHS, 4)
    logits = torch.randn(len(sequences), 300)
    if kind == "ties":
        logits = (logits * 2).round()
    elif kind == "zeros":
        logits = logits.relu() * (torch.rand_like(logits) > 0.9)
    elif kind == "infinite":
        logits[logits > 1] = float("inf")
        logits[logits < -1] = float("-inf")
    expected = top_k_slots_reference(logits, sequences, visible, table, blocks, 4, top_k)
    with kernel_runs("top_k_slots"):
        actual = ops.top_k_slots(logits, sequences, visible, table, blocks, 4, top_k)
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)


def test_no_tokens() -> None:
    nothing = torch.zeros(0, dtype=torch.int32)
    table = torch.zeros(1, 1, dtype=torch.int32)
    logits = ops.paged_mqa_logits(
        torch.zeros(0, 2, 8), torch.zeros(0, 2), torch.zeros(1, 4, 8), nothing, nothing, table, 5
    )
    assert logits.shape == (0, 5)
    slots, counts = ops.top_k_slots(logits, nothing, nothing, table, 1, 4, 3)
    assert slots.shape == (0, 3)
    assert counts.shape == (0,)


@cpu_only
def test_a_logit_that_is_no_number_harms_no_other_row() -> None:
    sequences, visible, _, table, blocks = batch(LENGTHS, 4)
    logits = torch.randn(len(sequences), 300)
    expected, _ = ops.top_k_slots(logits, sequences, visible, table, blocks, 4, 7)
    logits[1] = float("nan")
    actual, counts = ops.top_k_slots(logits, sequences, visible, table, blocks, 4, 7)
    assert counts[1] == 7
    keep = torch.arange(len(logits)) != 1
    assert torch.equal(actual[keep], expected[keep])


@cpu_only
@pytest.mark.parametrize(
    ("sequence", "count", "block", "message"),
    [
        (2, 1, 0, r"sequences\[0\] is 2; expected 0 <= sequence < 2"),
        (-1, 1, 0, r"sequences\[0\] is -1"),
        (0, 9, 0, r"visible\[0\] is 9; expected 0 <= visible < 9"),
        (0, 5, 3, r"block_table\[1\] is 3; expected 0 <= block < 3"),
    ],
)
def test_numbers_out_of_range(sequence: int, count: int, block: int, message: str) -> None:
    numbers = (torch.tensor([each], dtype=torch.int32) for each in (sequence, count))
    table = torch.tensor([[1, block]], dtype=torch.int32)
    with pytest.raises(IndexError, match=message):
        ops.top_k_slots(torch.zeros(1, 300), *numbers, table, 3, 4, 2)


def test_refuses_other_dtypes_and_sizes() -> None:
    index, table = torch.zeros(3, dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32)
    q, weights, cache = torch.zeros(3, 2, 8), torch.zeros(3, 2), torch.zeros(1, 4, 8)
    with pytest.raises(RuntimeError, match="weights"):
        ops.paged_mqa_logits(q, weights[:, :1], cache, index, index, table, 4)
    with pytest.raises(RuntimeError, match="cache"):
        ops.paged_mqa_logits(q, weights, cache.bfloat16(), index, index, table, 4)
    with pytest.raises(RuntimeError, match="top_k"):
        ops.top_k_slots(torch.zeros(3, 4), index, index, table, 1, 4, 0)
