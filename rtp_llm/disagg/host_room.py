"""Host memory of prompts whose blocks have left a device's cache and are not fetched yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rtp_llm.device.cpu import CpuDevice

if TYPE_CHECKING:
    from rtp_llm.disagg.layout import CacheLayout

# Of what is free at the start.
_SHARE = 0.5


class HostRoom:
    """A bound on it: the cache's blocks are free by then, so nothing else limits it."""

    def __init__(self, layout: CacheLayout, limit: int | None) -> None:
        """``limit`` in bytes; None: half of what is free now."""
        free = CpuDevice().memory_info().free
        self._layout = layout
        self._limit = int(_SHARE * free) if limit is None else limit

    def problem(self, held: Iterable[int], tokens: int) -> str | None:
        """Why a prompt of so many tokens does not fit beside the ``held`` ones; None if it does."""
        needed = self._layout.bytes_of(tokens)
        taken = sum(map(self._layout.bytes_of, held))
        if taken + needed <= self._limit:
            return None
        return (
            f"the blocks of {tokens} tokens take {_mib(needed)} of host memory, {_mib(taken)} of "
            f"{_mib(self._limit)} are taken (--cache-store-mem-mb)"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
