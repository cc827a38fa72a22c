# SPDX-License-Identifier: Apache-2.0
"""Routing of tokens to experts, and products of rows that are sorted by expert.

T tokens with k experts each, E experts (at most 1024), R = T k entries. A device may lack these
operators (ops.has_kernel). None of them waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator


@operator(optional=True)
def select_topk(
    logits: Tensor, ids: MutableTensor, weights: MutableTensor, renormalize: bool
) -> None:
    """In place: the k experts with the highest softmax(logits) of each token, best first.

    logits float32 [T, E] (the row stride is free); ids [T, k] of int32 or int64; weights float32
    [T, k]: the scores, divided by their sum with `renormalize`. Among equal scores the lowest id
    comes first. RuntimeError on a mismatch.
    """


@operator(optional=True)
def group_topk(
    logits: Tensor,
    bias: Tensor | None,
    ids: MutableTensor,
    weights: MutableTensor,
    *,
    scoring: str = "sigmoid",
    num_groups: int = 1,
    top_groups: int = 1,
    group_best: int = 2,
    renormalize: bool = True,
    scaling: float = 1.0,
) -> None:
    """In place: the k experts of each token among the best groups, as DeepSeek's models choose.

    Scores are `scoring` ("sigmoid" or "softmax") of logits; experts are chosen by score + bias
    (float32 [E]): neighbouring experts form `num_groups` groups, each rated by the sum of its
    `group_best` best; from the `top_groups` best groups, the k best experts are taken, best first
    (among equals the lowest id or group). weights are the chosen experts' scores without bias,
    divided by their sum with `renormalize`, times `scaling`. Tensors as in select_topk.
    RuntimeError on a mismatch.
    """


@operator(optional=True)
def fake_balance_expert(
    ids: MutableTensor,
    scales: MutableTensor,
    *,
    expert_num: int,
    dp_rank: int,
    dp_size: int,
    ep_size: int,
) -> None:
    """In place: ids (int32 or int64) that load every expert equally, and scales (float32) of 1.

    For benchmarks only: the model's own selection is lost. Entry i goes to rank (rank0 + i) %
    ep_size, which has expert_num / ep_size experts, and there to expert (expert0 + i / ep_size)
    modulo that number; rank0 and expert0 differ between data-parallel ranks, so the ranks are also
    balanced together. Both tensors are contiguous and of one shape. RuntimeError on a mismatch.
    """


@operator(optional=True)
def sort_by_expert(ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """ids int32 [T, k] -> (rows int32 [R], places int32 [T, k], offsets int32 [E + 1]).

    rows: the entries (t k + j) sorted by expert, stable within one; places: the sorted index of
    each entry; the entries of expert e are rows[offsets[e]:offsets[e + 1]]. Ids outside [0, E) are
    sorted last and get the place -1. RuntimeError on a mismatch.
    """
    return ids.new_empty(ids.numel()), torch.empty_like(ids), ids.new_empty(num_experts + 1)


@operator(optional=True)
def grouped_linear(x: Tensor, weight: Tensor, offsets: IndexTensor) -> Tensor:
    """x[r] @ weight[e].T for the rows offsets[e] <= r < offsets[e + 1]; sums are float32.

    x [R, K] of any float dtype, weight [E, N, K] of the same dtype, offsets int32 [E + 1],
    ascending from 0. Returns [R, N]; rows from offsets[E] on are undefined. On the CPU a row gives
    the same bits as in ops.linear. RuntimeError on a mismatch.
    """
    return x.new_empty(x.shape[0], weight.shape[1])


@operator(optional=True)
def sum_experts(y: Tensor, places: IndexTensor, weights: Tensor) -> Tensor:
    """The sum over j of weights[t, j] * y[places[t, j]], in float32, in this order; skips -1.

    y [R, N] of any float dtype, places int32 [T, k], weights float32 [T, k]. Returns [T, N].
    RuntimeError on a mismatch.
    """
    return y.new_empty(places.shape[0], y.shape[1])


# Most tokens, and experts of a token, that route_experts takes.
ROUTED_TOKENS, ROUTED_EXPERTS = 128, 16
TILE_ENTRIES = 16  # sorted entries of a tile, of one expert, at most


@operator(optional=True)
def route_experts(
    logits: Tensor,
    x: Tensor,
    shared_gate: Tensor | None,
    top_k: int,
    renormalize: bool,
    first: int = 0,
    count: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """select_topk and sort_by_expert for a small batch, in one kernel or two.

    Returns weights, rows, places, offsets and tiles.

    logits float32 [T, E] (the row stride is free), T at most 128 and top_k at most 16. shared_gate
    [1, H], of x's dtype (16 bits): each token also goes to a shared expert E, last among its own,
    with the weight sigmoid(x @ shared_gate.T) of x [T, H]; then k is top_k + 1, and there are E + 1
    experts. weights float32 [T, k]; rows, places and offsets are as sort_by_expert returns them.

    tiles int32 [T k]: the sorted entries in tiles of at most TILE_ENTRIES entries of one expert,
    each as the expert's number << 16 | its first entry; the shared expert's tiles first, then -1
    past the last one.

    With `count` only the experts `first` to first + count - 1 are on this rank, and are numbered 0
    to count - 1 in the sorted results. Entries of other experts have the place -1 and are in no row
    and in no tile; rows from offsets[-1] on are undefined. RuntimeError on a mismatch.
    """
    shared = 0 if shared_gate is None else 1
    tokens, k, experts = logits.shape[0], top_k + shared, count or logits.shape[1]
    index = logits.new_empty(0, dtype=torch.int32)
    return (
        logits.new_empty(tokens, k),
        index.new_empty(tokens * k),
        index.new_empty(tokens, k),
        index.new_empty(experts + shared + 1),
        index.new_empty(tokens * k),
    )


@operator(optional=True)
def add_experts(y: Tensor, places: Tensor, weights: Tensor, residual: MutableTensor) -> None:
    """In place: residual += sum_experts(y, places, weights), rounded once; for small batches.

    residual [T, N] with a free row stride; y, places and weights as for sum_experts. RuntimeError
    on a mismatch.
    """
