# SPDX-License-Identifier: Apache-2.0
"""Acceptance of a step's drafts: which rows count, and how to correct the plan made meanwhile.

Output o has the rows from cu_rows[o] to cu_rows[o + 1], as for match_ngrams; each row but the last
is followed by a draft.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator


@operator(composite=True)
def accept_drafts(
    tokens: MutableTensor, rejected: MutableTensor, drafts: Tensor, cu_rows: Tensor, keep: bool
) -> Tensor:
    """The last accepted row of each output, int32 [O]: the first that did not sample its draft.

    tokens int32 [R], sampled by each row; drafts int32 [R], the draft after each row; cu_rows int32
    [O + 1]. For an output without rows it is the preceding row, or 0.

    With `keep`, in place: the last row of an output gets the accepted row's token in `tokens`, and
    in `rejected` int32 [N], N >= R, the number of drafts after the accepted row. RuntimeError on a
    mismatch.
    """
    return cu_rows.new_empty(cu_rows.shape[0] - 1)


@operator(composite=True)
def correct_positions(
    positions: MutableTensor,
    seq_lens: MutableTensor,
    slots: MutableTensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    rejected: Tensor,
    rows: Tensor,
    block_size: int,
) -> None:
    """In place: shorten sequence b by rejected[rows[b]] tokens compared with the plan.

    positions int32 [T], slots int32 [G, T] of each group of the cache, seq_lens int32 [B],
    cu_seqlens_q int32 [B + 1], rows int32 [B], rejected int32 [N], block_tables int32 [G, B, M]; M
    blocks of `block_size` tokens. Slots follow the new positions, but a negative one is kept, and a
    position without a block gets -1. A row outside [0, N) shortens nothing. The last axes have no
    gaps; the strides of the others are free. RuntimeError on a mismatch.
    """
