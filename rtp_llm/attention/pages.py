# SPDX-License-Identifier: Apache-2.0
"""The pages of the cache that a step's queries see, listed on the host for backends that plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.attention.batch import HostNumbers


@dataclass(frozen=True)
class Pages:
    """int32: `queries` and `ends` [B + 1], prefix sums of new tokens and of pages; `blocks` [P],
    the pages of all sequences one after the other; `last` [B], keys in a sequence's last page;
    `first` [B], how many of its pages are left out in front.
    """

    queries: NDArray[np.int32]
    ends: NDArray[np.int32]
    blocks: NDArray[np.int32]
    last: NDArray[np.int32]
    first: NDArray[np.int32]


def list_pages(host: HostNumbers, group: int, block_size: int, window: int) -> Pages:
    """The pages that the step's queries see in cache group `group`.

    Pages that lie entirely before the window of a sequence's first query are left out: the cache
    may have reassigned them. Masks that count from a sequence's end stay correct, and keys are
    already rotated.
    """
    lengths, table = host.seq_lens, host.block_table[group]
    stop = -(-lengths // block_size)
    first = np.zeros_like(stop)
    if window:
        first_query = lengths - np.diff(host.cu_seqlens_q)
        first = np.maximum(first_query - window + 1, 0) // block_size
    columns = np.arange(table.shape[1], dtype=np.int32)
    seen = (columns >= first[:, None]) & (columns < stop[:, None])
    ends = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(stop - first, out=ends[1:])
    return Pages(host.cu_seqlens_q, ends, table[seen], (lengths - 1) % block_size + 1, first)


def pinned(arrays: Sequence[NDArray[np.int32]]) -> tuple[Tensor, ...]:
    """Copy one-dimensional arrays to pinned memory, from which uploads are asynchronous.

    torch does not reuse the memory until those copies are done.
    """
    together = torch.from_numpy(np.concatenate(arrays)).pin_memory()
    return torch.split(together, [len(array) for array in arrays])
