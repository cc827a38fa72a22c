# SPDX-License-Identifier: Apache-2.0
"""Beam search: which continuations of the beams are the best, batched over searches."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, operator


@operator
def select_beams(
    values: Tensor,
    ids: Tensor,
    rows: IndexTensor,
    scores: Tensor,
    cu_beams: IndexTensor,
    cu_groups: IndexTensor,
    diversity_penalty: Tensor,
    stop_ids: Tensor,
    cu_stops: IndexTensor,
    k: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Select the k best continuations of each group of beams, of the best tokens of each beam.

    values float32 [R, C], descending in each row, and ids int32 [R, C]: log-probabilities and their
    tokens, as `top_logprobs` returns them; -inf is no candidate. rows int32 [B]: the row of each
    beam, -1 if it has none. scores float32 [B]: the sum of each beam so far. cu_beams int32
    [G + 1]: group g has beams [cu_beams[g], cu_beams[g + 1]). cu_groups int32 [S + 1]: search s has
    groups [cu_groups[s], cu_groups[s + 1]), which choose one after the other.

    A candidate's total is its beam's score plus its value, less diversity_penalty[s] (float32 [S])
    for each time that an earlier group of the search has chosen its token. A group chooses as many
    candidates as it has beams, the best ones without the stop ids of the search: stop_ids int32,
    those of search s at [cu_stops[s], cu_stops[s + 1]).

    Returns parents int32 [G, k] (beams, counted from the group's first one), tokens int32 [G, k],
    totals float32 [G, k], descending (ties: the lowest beam first, then the first column), and
    logprobs float32 [G, k], the candidates' values; -1, -1, -inf and -inf where a group has fewer
    than k. RuntimeError on a mismatch, and on rows and offsets outside their tensors.

    Source: Vijayakumar et al., "Diverse Beam Search" (2016), with Hamming diversity.
    """
    shape = cu_beams.shape[0] - 1, k
    parents = values.new_empty(shape, dtype=torch.int32)
    totals = values.new_empty(shape)
    return parents, torch.empty_like(parents), totals, torch.empty_like(totals)
