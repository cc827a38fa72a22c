# SPDX-License-Identifier: Apache-2.0
"""Tokens at the places of their experts: against a loop, odd sizes, ids elsewhere."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.fp8 import fp8_blocks
from rtp_llm.ops.moe.moe_reference import sort_by_expert_reference
from rtp_llm.testing.operator_checks import FLOAT_DTYPES


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "hidden"),
    [(0, 2, 3, 128), (1, 1, 1, 128), (7, 2, 5, 200), (33, 8, 64, 2048), (5, 3, 300, 130)],
)
def test_each_expert_has_its_tokens(
    tokens: int, top_k: int, experts: int, hidden: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(tokens, hidden) * 5).to(dtype)
    chosen = [torch.randperm(experts)[:top_k] for _ in range(tokens)]
    ids = torch.stack(chosen).int() if chosen else torch.zeros(0, top_k, dtype=torch.int32)
    ids[torch.rand(ids.shape) < 0.2] = -1
    _, places, offsets = sort_by_expert_reference(ids, experts)
    q, scales, rows, counts = ops.scatter_fp8(x, ids, places, offsets)
    columns = -(-hidden // 128) * 128
    assert q.shape == (experts, tokens, columns) and q.dtype == fp8_blocks.E4M3
    assert scales.shape == (experts, columns // 128, fp8_blocks.scale_rows(tokens))
    assert rows.dtype == counts.dtype == torch.int32 and rows.shape == ids.shape
    listed = ids.flatten().tolist()
    assert counts.tolist() == [listed.count(expert) for expert in range(experts)]
    wanted, wanted_scales = fp8_blocks.quantize_rows(
        torch.nn.functional.pad(x.float(), (0, columns - hidden))
    )
    places_of_entries = rows.tolist()
    for token, experts_of_token in enumerate(ids.tolist()):
        for j, expert in enumerate(experts_of_token):
            place = places_of_entries[token][j]
            if expert < 0:
                assert place == -1
                continue
            assert place // tokens == expert and place % tokens < int(counts[expert])
            row = place % tokens
            assert torch.equal(scales[expert, :, row], wanted_scales[token])
            # The device's own rounding of the quotient may take the neighbour.
            different = q[expert, row].float() != wanted[token].float()
            assert different.float().mean() < 0.01
    used = [place for token in places_of_entries for place in token if place >= 0]
    assert len(set(used)) == len(used)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "hidden"),
    [(0, 2, 3, 128), (1, 1, 1, 128), (7, 2, 5, 200), (33, 8, 64, 2048)],
)
def test_experts_rows_lie_one_after_the_other(
    tokens: int, top_k: int, experts: int, hidden: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(tokens, hidden) * 5).to(dtype)
    ids = torch.rand(tokens, experts).argsort(1)[:, :top_k].int()
    ids[torch.rand(ids.shape) < 0.2] = -1
    _, places, offsets = sort_by_expert_reference(ids, experts)
    q, scales, rows, starts, counts = ops.scatter_fp8_ragged(x, ids, places, offsets)
    columns, count = -(-hidden // 128) * 128, (tokens * top_k + 3 * experts) // 4 * 4
    assert q.shape == (count, columns) and q.dtype == fp8_blocks.E4M3
    assert scales.shape == (columns // 128, count)
    assert torch.equal(counts, offsets.diff())
    assert (starts % 4 == 0).all() and int(starts[-1]) <= count
    assert (starts[1:] - starts[:-1] >= counts).all()  # no expert begins in another
    own = places - offsets[ids.clamp(min=0)] + starts[ids.clamp(min=0)]
    assert torch.equal(rows, torch.where(ids >= 0, own, -1).int())
    _, wanted_scales = fp8_blocks.quantize_rows(
        torch.nn.functional.pad(x.float(), (0, columns - hidden))
    )
    for token, places_of_token in enumerate(rows.tolist()):
        for place in places_of_token:
            if place < 0:
                continue
            assert torch.equal(scales[:, place], wanted_scales[token])
            back = fp8_blocks.dequantize_rows(q[place, None], scales[:, place][None])[0, :hidden]
            torch.testing.assert_close(back, x[token].float(), rtol=0.07, atol=0.05)
