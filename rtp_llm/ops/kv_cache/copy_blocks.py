# SPDX-License-Identifier: Apache-2.0
"""Operations on whole blocks of the paged KV cache."""

from __future__ import annotations

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator


@operator
def copy_blocks(cache: MutableTensor, pairs: IndexTensor) -> None:
    """In place: cache[:, :, destination] = cache[:, :, source] for each pair.

    cache [L, 1 or 2 planes, N, S, Hk, D] with the last three dimensions contiguous; pairs int32 [P,
    2] of (source, destination). RuntimeError if a destination occurs twice or is also a source: the
    result would depend on the order. IndexError for a block outside [0, N).
    """
