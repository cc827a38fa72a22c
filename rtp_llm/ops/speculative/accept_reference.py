# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of accepted drafts; they wait for no device."""

from __future__ import annotations

import torch
from torch import Tensor


def accept_drafts_reference(
    tokens: Tensor, rejected: Tensor, drafts: Tensor, cu_rows: Tensor, keep: bool
) -> Tensor:
    """Plain PyTorch reference of `ops.accept_drafts`: same arguments and results."""
    count, bounds = len(tokens), cu_rows.long()
    begins, ends = bounds[:-1], bounds[1:]
    last = (ends - 1).clamp(min=0)
    rows = torch.arange(count, device=tokens.device)
    of_row = _owners(cu_rows, count)
    wrong = torch.where(tokens != drafts, rows, count)
    # An output without rows gets no place from a row; the last entry belongs to no output.
    first_wrong = bounds.new_full((len(begins) + 1,), count)
    first_wrong.scatter_reduce_(0, of_row, wrong, "amin")
    right = torch.minimum(first_wrong[:-1], last)
    if keep and count:
        there = ends > begins
        of = torch.where(there, last, rejected.new_full((), len(rejected)).long())
        _put(rejected, of, (last - right).int())
        of = torch.where(there, last, rejected.new_full((), count).long())
        _put(tokens, of, tokens.index_select(0, right))
    return right.int()


def correct_positions_reference(
    positions: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    rejected: Tensor,
    rows: Tensor,
    block_size: int,
) -> None:
    """Plain PyTorch reference of `ops.correct_positions`: same arguments and results."""
    if not len(seq_lens):
        return
    known = (rows >= 0) & (rows < len(rejected))
    padded = torch.cat((rejected, rejected.new_zeros(1)))
    shorter = padded.index_select(0, torch.where(known, rows, len(rejected)))
    seq_lens.sub_(shorter)
    count, most = len(positions), len(seq_lens)
    sequence = _owners(cu_seqlens_q, count)
    of_token = torch.cat((shorter, shorter.new_zeros(1))).index_select(0, sequence)
    positions.sub_(of_token)
    sequence = sequence.clamp(max=most - 1)
    place = torch.div(positions, block_size, rounding_mode="floor")
    known = (positions >= 0) & (place < block_tables.shape[2])
    place = torch.where(known, place, 0).long()
    for old, table in zip(slots, block_tables, strict=True):
        new = table[sequence, place] * block_size + positions % block_size
        new = torch.where(known, new, -1)
        old.copy_(torch.where((old < 0) | (of_token == 0), old, new))


def _owners(cu: Tensor, count: int) -> Tensor:
    """For each of `count` places the part of `cu` [N + 1] that it is in, int64; N: in none."""
    numbers = torch.arange(count, dtype=cu.dtype, device=cu.device)
    owner = torch.searchsorted(cu, numbers, right=True) - 1
    return torch.where((owner < 0) | (owner >= len(cu) - 1), len(cu) - 1, owner)


def _put(target: Tensor, places: Tensor, values: Tensor) -> None:
    """target[places] = values, ignoring places past its end."""
    longer = torch.cat((target, target.new_zeros(1)))
    longer.index_copy_(0, places, values)
    target.copy_(longer[:-1])
