# SPDX-License-Identifier: Apache-2.0
"""A bounded pool of pinned host memory, through which blocks go between devices' caches."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rtp_llm.device.cpu import CpuDevice

if TYPE_CHECKING:
    from rtp_llm.worker.cache.transfer.layout import CacheLayout

# Of what is free at the start.
_SHARE = 0.5


class PoolFullError(RuntimeError):
    """A prompt's blocks do not fit; the message has the sizes and the setting."""


class PinnedPool:
    """A bound on it: the cache has no place for these blocks any more, or none yet, so nothing else
    limits them. torch rounds each piece of pinned memory up to a power of two, which counts."""

    def __init__(self, layout: CacheLayout, limit: int | None, ranks: int = 1) -> None:
        """``limit`` in bytes; None: half of what is free now. Each of ``ranks`` has its part."""
        free = CpuDevice().memory_info().free
        self._layout = layout
        self.limit = (int(_SHARE * free) if limit is None else limit) // ranks
        self._taken = 0
        # An owner may go in any thread, and in the middle of what this one does.
        self._guard = threading.RLock()

    def problem(self, held: Iterable[int], tokens: int) -> str | None:
        """Why a prompt of so many tokens does not fit next to the ``held`` ones; None if it does.

        It is stored in pieces, one for each step that computes part of it. Their number is not
        known yet, but together they take less than twice their blocks.
        """
        needed = 2 * self._layout.bytes_of(tokens)
        taken = 2 * sum(map(self._layout.bytes_of, held))
        return self._problem(f"the blocks of {tokens} tokens", needed, taken)

    def take(self, pieces: Iterable[int], owner: object) -> None:
        """Room for pieces of so many bytes, as long as their ``owner`` is there.

        Raises PoolFullError.
        """
        needed = sum(map(rounded, pieces))
        with self._guard:
            if problem := self._problem("the blocks of a prompt", needed, self._taken):
                raise PoolFullError(problem)
            self._taken += needed
        weakref.finalize(owner, self._leave, needed)

    def _leave(self, size: int) -> None:
        with self._guard:
            self._taken -= size

    def _problem(self, what: str, needed: int, taken: int) -> str | None:
        if taken + needed <= self.limit:
            return None
        return (
            f"{what} take {_mib(needed)} of host memory, {_mib(taken)} of {_mib(self.limit)} are "
            "taken (--cache-store-mem-mb)"
        )


def rounded(size: int) -> int:
    """What torch takes for so many bytes of pinned memory."""
    return 1 << (size - 1).bit_length() if size else 0


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
