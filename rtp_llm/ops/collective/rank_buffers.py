# SPDX-License-Identifier: Apache-2.0
"""Memory in which ranks meet that write into each other's, as operators are given it.

`buffers` [ranks + 1] int64 holds the addresses of all ranks' buffers in their order, and behind
them that of a word in pinned host memory: what is not 0 there ends the wait for ranks that do not
come, and the results are worth nothing. A buffer has buffer_words(ranks, capacity) words of 32
bits, all ABSENT before the first call of any rank. `state` [STATE_WORDS] int32 is this rank's own
and begins with zeros. All ranks call the same operators with the same shapes in the same order, a
rank one after the other. `capacity` is the most bytes that go to a rank in a call, a multiple of
16, and `most_blocks` limits how much of a GPU a call takes (0: one wave), for ranks that share one.
"""

from __future__ import annotations

MOST_RANKS = 8
ABSENT = -(2**31)
STATE_WORDS = 4
PACK_BYTES = 16
_EPOCHS = 3


def buffer_words(ranks: int, capacity: int) -> int:
    """Words of 32 bits in each rank's buffer: a place of `capacity` bytes for each rank, thrice."""
    return _EPOCHS * ranks * capacity // 4
