# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the way of tokens to their experts' ranks, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Tokens = tuple[Tensor, Tensor, Tensor]  # x [T, H], ids [T, k], weights [T, k]


def tokens_for(rank: int, ranks: Sequence[Tokens], slots: int, rows: int) -> Tokens:
    """What dispatch_tokens gives rank `rank`, of the tokens of all ranks; x is 0 where nothing is.

    Weights of choices elsewhere come too.
    """
    x, ids, weights = ranks[0]
    there = (
        x.new_zeros(len(ranks), rows, x.shape[1]),
        ids.new_full((len(ranks), rows, ids.shape[1]), -1),
        weights.new_zeros(len(ranks), rows, ids.shape[1]),
    )
    first = rank * slots
    for number, (x, ids, weights) in enumerate(ranks):
        here = (ids >= first) & (ids < first + slots)
        count = len(x)
        there[0][number, :count] = x.where(here.any(1, keepdim=True), 0)
        there[1][number, :count] = torch.where(here, ids - first, -1)
        there[2][number, :count] = weights
    x, ids, weights = (each.flatten(0, 1) for each in there)
    return x, ids, weights


def sums_of(rank: int, results: Sequence[Tensor], ids: Tensor, slots: int) -> Tensor:
    """What combine_tokens gives rank `rank`, of the results of all ranks; `ids` of its tokens."""
    rows, count = len(results[0]) // len(results), len(ids)
    total = torch.zeros(count, results[0].shape[1], device=ids.device)
    for number, each in enumerate(results):
        part = each[rank * rows : rank * rows + count].float()
        here = (ids >= number * slots) & (ids < (number + 1) * slots)
        total += part.where(here.any(1, keepdim=True), 0)
    return total.to(results[0].dtype)


def _check_alone(buffers: Tensor) -> None:
    """What is in the memory of other ranks' devices, PyTorch cannot read by its address."""
    if buffers.numel() != 2:
        raise RuntimeError(f"the reference has the tokens of one rank, not of {len(buffers) - 1}")


def dispatch_tokens_reference(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    slots: int,
    rows: int,
    buffers: Tensor,
    state: Tensor,
    rank: int,
    capacity: int,
    max_blocks: int = 0,
) -> Tokens:
    """See rtp_llm.ops.dispatch_tokens; of one rank."""
    _check_alone(buffers)
    return tokens_for(rank, [(x, ids, weights)], slots, rows)


def combine_tokens_reference(
    results: Tensor,
    ids_there: Tensor,
    ids: Tensor,
    slots: int,
    buffers: Tensor,
    state: Tensor,
    rank: int,
    capacity: int,
    max_blocks: int = 0,
) -> Tensor:
    """See rtp_llm.ops.combine_tokens; of one rank."""
    _check_alone(buffers)
    return sums_of(rank, [results], ids, slots)
