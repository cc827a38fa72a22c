# SPDX-License-Identifier: Apache-2.0
"""What a step's drafts turned out to be: which rows count, and what the next plan has wrong by it.

Rows of outputs lie as for match_ngrams: output o has those from cu_rows[o] to cu_rows[o + 1], the
draft behind each of them but the last one.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator


@operator(composite=True)
def accept_drafts(
    tokens: MutableTensor, rejected: MutableTensor, drafts: Tensor, cu_rows: Tensor, keep: bool
) -> Tensor:
    """The last row of each output that counts, int32 [O]: the first whose token is not its draft.

    tokens int32 [R], what each row sampled; drafts int32 [R], the draft behind it; cu_rows int32 [O
    + 1]. Of an output without rows it is the row before it, or 0.

    With `keep`, in place: under the last row of an output `tokens` has the token of the row that
    counts, and `rejected` int32 [N], N >= R, the number of drafts behind that one. RuntimeError on
    a mismatch.
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
    """Make sequence b rejected[rows[b]] tokens shorter than a plan says, in place.

    positions int32 [T], slots int32 [G, T] of each group of the cache, seq_lens int32 [B],
    cu_seqlens_q int32 [B + 1], rows int32 [B], rejected int32 [N], block_tables int32 [G, B, M]; M
    blocks of `block_size` tokens. Slots are those of the new positions, but a negative one stays,
    and one whose position has no block becomes -1. A row outside [0, N) shortens nothing. The last
    axes have no gaps; the strides of the others are free. RuntimeError on a mismatch.
    """
