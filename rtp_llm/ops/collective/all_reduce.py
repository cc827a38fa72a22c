"""Sums over ranks that write into each other's device memory, alone and with the norm behind them.

`buffers` [ranks + 1] int64 holds the addresses of all ranks' buffers in their order, and behind
them that of a word in pinned host memory: what is not 0 there ends the wait for ranks that do not
come, and the results are worth nothing. A buffer has buffer_words(ranks, capacity) words of 32
bits, all ABSENT before the first call of any rank. `state` [STATE_WORDS] int32 is this rank's own
and begins with zeros. All ranks call the same operators with the same shapes in the same order, a
rank one after the other. `capacity` is the most bytes of x, a multiple of 16, and `most_blocks`
limits how much of a GPU a call takes (0: one wave), for ranks that share one.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator

MOST_RANKS = 8
ABSENT = -(2**31)
STATE_WORDS = 4
_EPOCHS = 3


def buffer_words(ranks: int, capacity: int) -> int:
    """Words of 32 bits in each rank's buffer: a place of `capacity` bytes for each rank, thrice."""
    return _EPOCHS * ranks * capacity // 4


@operator(optional=True)
def all_reduce(
    x: MutableTensor,
    buffers: Tensor,
    state: MutableTensor,
    rank: int,
    capacity: int,
    most_blocks: int = 0,
) -> None:
    """x = its sum over the ranks, in their order in float32, rounded once; the same bits on all.

    x of float32, bfloat16 or float16, contiguous, a multiple of 16 bytes at such an address. A sum
    that is zero is +0.0. RuntimeError on a mismatch.
    """


@operator(optional=True)
def all_reduce_add_rms_norm(
    x: MutableTensor,
    residual: MutableTensor,
    weight: Tensor,
    eps: float,
    norm_offset: float,
    buffers: Tensor,
    state: MutableTensor,
    rank: int,
    capacity: int,
    most_blocks: int = 0,
) -> None:
    """In place: residual += the sum of x over the ranks, then x = rms_norm(residual, ...).

    Only the new residual is rounded, not the sum. x and residual [..., C] as x of rms_norm, of one
    shape and dtype, in different memory, and weight [C]; rows begin at multiples of 16 bytes.
    """
