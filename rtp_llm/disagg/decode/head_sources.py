# SPDX-License-Identifier: Apache-2.0
"""Which ranks of a prefill worker have the KV heads of a local rank, for any two sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.attention import CacheDtypes, CacheGroups, CacheSpec, FullAttentionSpec
from rtp_llm.distributed.tensor_parallel import planned_rank
from rtp_llm.models.drafts.draft_model import cache_groups_of

if TYPE_CHECKING:
    from rtp_llm.models.config import ModelConfig

Rows = Sequence[tuple[int, NDArray[np.int64]]]
# Columns of a store's row, see layout.py.
_ADDRESS, _ROWS, _BYTES, _STRIDE = 3, 4, 5, 6


@dataclass(frozen=True)
class Source:
    """The heads transferred by one load: slice ``theirs`` (count, index) of a token's heads on rank
    ``rank`` of the prefill worker, into slice ``ours`` of its heads on this rank."""

    rank: int
    theirs: tuple[int, int] = (1, 0)
    ours: tuple[int, int] = (1, 0)


@dataclass(frozen=True)
class Held:
    """KV heads of a layer on one of ``ranks``: ``count`` of ``whole``, by the rule of Shard."""

    whole: int
    count: int
    ranks: int

    def first(self, rank: int) -> int:
        """The first head that a rank has."""
        return 0 if self.count == self.whole else rank * self.whole // self.ranks

    def holder(self, head: int, asking: int) -> int:
        """A rank that has the head; if there are several, chosen by the number of the asking
        rank."""
        if self.count == self.whole:
            return asking % self.ranks
        replicas = max(1, self.ranks // self.whole)
        return head * self.ranks // self.whole + asking % replicas


def sources(rank: int, here: Held, there: Held) -> tuple[Source, ...]:
    """The sources of a layer's heads on ``rank`` of ``here``."""
    unit, first = math.gcd(here.count, there.count), here.first(rank)
    found = []
    for head in range(first, first + here.count, unit):
        holder = there.holder(head, rank)
        theirs = there.count // unit, (head - there.first(holder)) // unit
        found.append(Source(holder, theirs, (here.count // unit, (head - first) // unit)))
    return tuple(found)


class LayerSources:
    """The sources of each layer of a model's cache, for one of this worker's ranks.

    ``of(ranks)`` are the sources at a prefill worker with that many ranks; it raises ValueError if
    the model cannot be divided so. ``whole``: what a single rank would keep.
    """

    def __init__(self, config: ModelConfig, dtypes: CacheDtypes, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._config, self._dtypes = config, dtypes
        self.of = cache(self._of)
        self.whole = self._groups(1)

    def _groups(self, ranks: int) -> CacheGroups:
        return cache_groups_of(self._config, self._dtypes, planned_rank(ranks))

    def _of(self, ranks: int) -> list[tuple[Source, ...]]:
        ours, theirs = self._groups(self._ranks).specs, self._groups(ranks).specs
        layers = []
        for whole, here, there in zip(self.whole.specs, ours, theirs, strict=True):
            held = Held(_heads(whole), _heads(here), self._ranks)
            layers.append(sources(self._rank, held, Held(_heads(whole), _heads(there), ranks)))
        return layers

    def loads(self, rows: Rows, block_size: int, ranks: int) -> dict[tuple[int, int, int], Rows]:
        """The rows of each load, by (rank, count of slices, index) at the prefill worker, of whole
        blocks ``rows`` here."""
        layers = self.of(ranks)
        found: dict[tuple[int, int, int], list[tuple[int, NDArray[np.int64]]]] = {}
        for layer, blocks in rows:
            for source in layers[layer]:
                part = blocks
                if source.theirs[0] > 1 or source.ours[0] > 1:
                    part = head_rows(blocks, block_size, *source.ours)
                found.setdefault((source.rank, *source.theirs), []).append((layer, part))
        return dict(found)


def head_rows(
    blocks: NDArray[np.int64], block_size: int, count: int, index: int
) -> NDArray[np.int64]:
    """Slice ``index`` of ``count`` of each token's heads, of rows int64 [N, 7] of whole blocks:
    one row a token."""
    rows = blocks.copy()
    token = blocks[:, _BYTES] // block_size
    rows[:, _ROWS], rows[:, _STRIDE], rows[:, _BYTES] = block_size, token, token // count
    rows[:, _ADDRESS] += index * (token // count)
    return rows


def _heads(spec: CacheSpec | None) -> int:
    """Those that ranks may divide; latents and states are one thing."""
    return spec.heads if isinstance(spec, FullAttentionSpec) else 1
