# SPDX-License-Identifier: Apache-2.0
"""The device memory through which ranks exchange data, as operators take it.

`buffers` [ranks + 1] int64 holds the addresses of all ranks' buffers in rank order, followed by the
address of a word in pinned host memory: once that word is not 0, kernels stop waiting for ranks
that do not respond, and their results are invalid. A buffer has buffer_words(ranks, capacity) words
of 32 bits, all ABSENT before the first call of any rank. `state` [STATE_WORDS] int32 belongs to
this rank and starts as zeros. All ranks call the same operators with the same shapes in the same
order, each rank one call at a time. `capacity` is the most bytes sent to one rank in a call, a
multiple of 16, and `max_blocks` limits how much of a GPU a call takes (0: one wave), for ranks
that share a GPU.
"""

from __future__ import annotations

MAX_RANKS = 8
ABSENT = -(2**31)
STATE_WORDS = 4
PACK_BYTES = 16
_EPOCHS = 3


def buffer_words(ranks: int, capacity: int) -> int:
    """The 32-bit words in each rank's buffer: `capacity` bytes for each rank, three times."""
    return _EPOCHS * ranks * capacity // 4
