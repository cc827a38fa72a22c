# SPDX-License-Identifier: Apache-2.0
"""Beam search, batched over searches: the best continuations of beams, and how they go on."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator


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
) -> tuple[Tensor, Tensor]:
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

    Returns int32 [2, G, k], parents (beams, counted from the group's first one) and tokens, and
    float32 [2, G, k], totals, descending (ties: the lowest beam first, then the first column), and
    log-probabilities, the candidates' values; -1 and -inf where a group has fewer than k.
    RuntimeError on a mismatch, and on rows and offsets outside their tensors.

    Source: Vijayakumar et al., "Diverse Beam Search" (2016), with Hamming diversity.
    """
    shape = 2, cu_beams.shape[0] - 1, k
    return values.new_empty(shape, dtype=torch.int32), values.new_empty(shape)


@operator
def choose_beams(
    numbers: Tensor,
    values: Tensor,
    widths: Tensor,
    rows: IndexTensor,
    cu_beams: IndexTensor,
    cu_groups: IndexTensor,
    stop_ids: Tensor,
    cu_stops: IndexTensor,
    scores: MutableTensor,
    beam_parents: MutableTensor,
    row_tokens: MutableTensor,
) -> None:
    """In place: each group goes on with its best continuations that do not end a sequence.

    numbers and values [2, G, k]: the results of `select_beams`, which was given cu_beams,
    cu_groups, stop_ids and cu_stops. widths int32 [G]: the number of beams with which a group goes
    on, at most all of its own; 0: it chooses nothing. rows int32 [B]: where the token of a beam is
    written, -1: nowhere.

    Beam cu_beams[g] + i takes the i-th continuation of group g without a stop id: its total in
    scores float32 [S], its parent's place among all beams in beam_parents int32 [S], S at least B,
    and its token in row_tokens int32 [N]. If there are too few, the other beams of the group stay
    as they are. RuntimeError on a mismatch, and on rows and offsets outside their tensors.
    """


@operator
def order_beams(
    block_table: MutableTensor,
    slot_mapping: MutableTensor,
    positions: Tensor,
    sequences: IndexTensor,
    beam_parents: IndexTensor,
    cu_beams: IndexTensor,
    block_size: int,
) -> Tensor:
    """In place: beams of a step go on from what their parents have in the paged KV cache.

    block_table int32 [N, M]; slot_mapping and positions int32 [T]. sequences int32 [B]: a beam is
    this sequence of the step, and its token is the one with the same number; -1: it is not in the
    step, and neither is any other one of its group. Group g has beams [cu_beams[g],
    cu_beams[g + 1]), all at the same position. beam_parents int32 [B or more]: the parent of each
    beam, as `choose_beams` writes it.

    Blocks before the one of its token are the parent's. That one stays a beam's own while it is
    empty; otherwise the first child of a parent gets the parent's, and the n-th of the other
    children the one of the n-th beam without a child. slot_mapping then names that block; later
    entries of block_table stay as they are.

    Returns pairs int32 [B, 2] for `copy_blocks`: the parent's block and the one that takes its
    place, -1 and -1 if nothing has to be copied. RuntimeError on a mismatch, and on numbers outside
    their tensors.
    """
    return sequences.new_empty((sequences.shape[0], 2))
