"""Tests of dispatch and combine: several ranks give what one rank gives."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.distributed.dispatch import CapacityError, ExactExchange, PaddedExchange
from rtp_llm.distributed.ranks_for_tests import run_ranks
from rtp_llm.distributed.rows import TokenRows

HIDDEN, EXPERTS = 24, 12
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def _experts(dtype):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=generator).mul(HIDDEN**-0.5).to(dtype)


def _compute(rows, experts):
    """Weighted sum of the chosen experts' tanh(E x); ids of -1 give nothing."""
    out = torch.zeros(len(rows.x), HIDDEN)
    for column in range(rows.ids.shape[1]):
        for expert in range(len(experts)):
            here = (rows.ids[:, column] == expert).nonzero()[:, 0]
            result = torch.tanh(rows.x[here] @ experts[expert].t()).float()
            out[here] += rows.weights[here, column, None] * result
    return out.to(rows.x.dtype)


def _tokens(rank, count, k, dtype, seed):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    ids = torch.rand(count, EXPERTS, generator=generator).argsort(1)[:, :k].to(torch.int32)
    if seed % 3 == 1:
        ids %= 2  # all of them on the first rank
    if seed % 3 == 2 and count:
        ids[0, 0] = -1
    x = torch.randn(count, HIDDEN, generator=generator).to(dtype)
    return TokenRows(x, ids, torch.rand(count, k, generator=generator))


def _both_forms(world, cases):
    slots = EXPERTS // world.size
    first = world.rank * slots
    worst = []
    for seed, (counts, k, dtype) in enumerate(cases):
        rows = _tokens(world.rank, counts[world.rank], k, dtype, seed)
        experts = _experts(dtype)
        expected = _compute(rows, experts)
        forms = (
            ExactExchange(world.tensors, world.host, slots),
            PaddedExchange(world.tensors, slots, max(1, *counts)),
            PaddedExchange(world.tensors, slots, max(counts) + 3),
        )
        for form in forms:
            there, sent = form.dispatch(rows)
            assert ((there.ids >= -1) & (there.ids < slots)).all()
            results = _compute(there, experts[first : first + slots])
            if not isinstance(form, ExactExchange):
                # What a rank computes for rows that hold no token must not matter.
                results[(there.ids < 0).all(1)] = float("nan")
            found = form.combine(results, sent)
            assert found.dtype is dtype and found.shape == expected.shape
            if len(found):
                error = (found.float() - expected.float()).abs().max() / expected.abs().max()
                worst.append((error.item(), dtype))
            else:
                worst.append((0.0, dtype))
    return worst


CASES = {
    2: [
        ((5, 7), 3, torch.float32),
        ((1, 8), 2, torch.float32),
        ((4, 0), 2, torch.float32),
        ((0, 0), 2, torch.float32),
        ((33, 2), 1, torch.bfloat16),
        ((0, 3), 1, torch.float32),
    ],
    4: [
        ((5, 0, 1, 9), 4, torch.float32),
        ((3, 3, 0, 2), 2, torch.float32),
        ((6, 1, 2, 0), 8, torch.bfloat16),
    ],
}


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_together_give_what_one_gives(tmp_path, size):
    for worst in run_ranks(tmp_path, size, _both_forms, CASES[size]):
        assert isinstance(worst, list), worst
        assert len(worst) == 3 * len(CASES[size])
        for error, dtype in worst:
            assert error <= TOLERANCE[dtype]


def test_more_tokens_than_agreed_are_an_error():
    class Two:
        rank, size = 1, 2

    form = PaddedExchange(Two(), 6, 4)
    with pytest.raises(CapacityError, match=r"rank 1 has 5 tokens .* capacity of 4"):
        form.dispatch(_tokens(0, 5, 2, torch.float32, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_survive_packing(dtype):
    for count, k in [(0, 3), (1, 3), (5, 3), (0, 1), (1, 1), (4, 1)]:
        drawn = _tokens(0, count, k, dtype, 2)
        # As operators give them: of no row and one choice, ids + 1 has a last stride of 0.
        ids = torch.empty(count, k, dtype=torch.int32).copy_(drawn.ids)
        rows = TokenRows(drawn.x, ids, drawn.weights)
        back = TokenRows.unpack(rows.pack(), HIDDEN, dtype, k)
        for name in ("x", "ids", "weights"):
            assert torch.equal(getattr(back, name), getattr(rows, name))
    empty = TokenRows.unpack(
        torch.zeros(2, HIDDEN * dtype.itemsize + 24, dtype=torch.uint8), HIDDEN, dtype, 3
    )
    assert (empty.ids == -1).all() and not empty.x.any() and not empty.weights.any()
