# SPDX-License-Identifier: Apache-2.0
"""Decides which sequences of a step attend over latents as they are, and which expand them.

Both forms give the same result with a different amount of work. With q new tokens that see k keys
each on average, the multiply-adds of a head are

    absorbed: q k (2 R + P) for the scores and sums, and q R (Dn + Dv) on the way in and out;
    expanded: q k (Dn + P + Dv), and R (Dn + Dv) for every key of the context.

The cheaper form is chosen for each sequence: with DeepSeek's sizes (512, 64, 128, 128) a prompt
chunk expands its context from about 170 new tokens on, and always if there is no earlier context; a
decode never does. If the host does not know the lengths (in graphs), all sequences are absorbed,
which is always correct; so are sequences with keys that no longer fit into the step's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.attention.indexer import TokenSequences
from rtp_llm.attention.pages import pinned

if TYPE_CHECKING:
    from rtp_llm.attention.batch import ForwardBatch, HostNumbers

# Below, a step is a few small kernels in either form, and the absorbed one has fewer.
LEAST_EXPANDED = 32
# Keys that a step expands, of all its sequences: their latents are gathered, and one head of them
# must fit into a pass. Many prompts that share one long prefix would have millions.
MAX_EXPANDED_KEYS = 2**18
# Keys of a sequence start at multiples of this, so that paged kernels can read them too.
EXPANDED_BLOCK = 64


@dataclass(frozen=True)
class MlaSizes:
    """Sizes of a model's heads; see MlaConfig."""

    latent_size: int
    rope_size: int
    nope_size: int
    value_size: int

    def expands(self, queries: NDArray[np.int32], keys: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether expanding is cheaper, for sequences with `queries` new tokens and `keys` keys."""
        new, context = queries.astype(np.float64), keys.astype(np.float64)
        pairs = new * context - new * (new - 1) / 2  # causal
        either_way = self.latent_size * (self.nope_size + self.value_size)
        absorbed = pairs * (2 * self.latent_size + self.rope_size) + new * either_way
        per_pair = self.nope_size + self.rope_size + self.value_size
        expanded = pairs * per_pair + context * either_way
        return (queries >= LEAST_EXPANDED) & (expanded < absorbed)


@dataclass(frozen=True)
class MlaPart:
    """Sequences of a batch that attend in one form.

    `rows` int64 are their tokens in the batch (None: all of it); the lengths are theirs alone.
    """

    rows: Tensor | None
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    block_table: Tensor
    max_seqlen_q: int
    max_seqlen_k: int


@dataclass(frozen=True)
class ExpandedPart(MlaPart):
    """Sequences whose context is expanded into K rows, one sequence after another.

    `places` int64 [K] are the rows' places in the cache; `starts` int32 [B] is the first row of
    each sequence, a multiple of EXPANDED_BLOCK. The gap between two sequences repeats a valid key.
    """

    places: Tensor
    starts: Tensor

    @cached_property
    def table(self) -> Tensor:
        """int32 [B, M]: blocks of EXPANDED_BLOCK rows of each sequence, for paged kernels."""
        width = -(-self.max_seqlen_k // EXPANDED_BLOCK)
        columns = torch.arange(width, dtype=torch.int32, device=self.starts.device)
        table = (self.starts // EXPANDED_BLOCK)[:, None] + columns
        # Entries past a sequence's last block name blocks of other sequences and are never read.
        return table.clamp(max=len(self.places) // EXPANDED_BLOCK - 1)


@dataclass(frozen=True)
class MlaStep:
    """The parts of a step; None: no sequence takes that form.

    `tokens`: an indexer selects what each token attends to, so that all tokens are absorbed.
    """

    absorbed: MlaPart | None
    expanded: ExpandedPart | None = None
    tokens: TokenSequences | None = None


def plan_step(batch: ForwardBatch, sizes: MlaSizes, group: int = 0) -> MlaStep:
    """Choose the form for every sequence of a cache group, without waiting for the device."""
    whole = MlaPart(
        None,
        batch.cu_seqlens_q,
        batch.seq_lens,
        batch.block_table[group],
        batch.max_seqlen_q,
        batch.max_seqlen_k,
    )
    host = batch.host
    if host is None or batch.max_seqlen_q < LEAST_EXPANDED:
        return MlaStep(whole)
    new = np.diff(host.cu_seqlens_q)
    expands = sizes.expands(new, host.seq_lens)
    _keep_room(expands, new, _room(host.seq_lens))
    if not expands.any():
        return MlaStep(whole)
    block_size = batch.kv_cache[batch.layer_group.index(group)].shape[2]
    if expands.all():
        return MlaStep(None, _expanded(whole, host.seq_lens, block_size))
    chosen = _part(whole, host, np.flatnonzero(expands))
    others = _part(whole, host, np.flatnonzero(~expands))
    return MlaStep(others, _expanded(chosen, host.seq_lens[expands], block_size))


def _keep_room(expands: NDArray[np.bool_], new: NDArray[np.int32], room: NDArray[np.int32]) -> None:
    """Limit the expanding sequences to those that fit into a step, most new tokens first.

    The more tokens share expanded keys, the more each key saves.
    """
    if room[expands].sum(dtype=np.int64) <= MAX_EXPANDED_KEYS:
        return
    left = MAX_EXPANDED_KEYS
    for sequence in np.argsort(-new, kind="stable"):
        expands[sequence] &= room[sequence] <= left
        left -= int(room[sequence]) * int(expands[sequence])


def _room(keys: NDArray[np.int32]) -> NDArray[np.int32]:
    """Rows that sequences with `keys` keys take when expanded."""
    return -(-keys // EXPANDED_BLOCK) * EXPANDED_BLOCK


def _part(whole: MlaPart, host: HostNumbers, sequences: NDArray[np.int64]) -> MlaPart:
    starts, ends = host.cu_seqlens_q[sequences], host.cu_seqlens_q[sequences + 1]
    counts = ends - starts
    tokens = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
    numbers = (sequences, np.concatenate(tokens), _sums(counts))
    chosen, rows, sums = _uploaded(whole.seq_lens.device, *numbers)
    return MlaPart(
        rows.long(),
        sums,
        whole.seq_lens[chosen],
        whole.block_table[chosen],
        int(counts.max()),
        int(host.seq_lens[sequences].max()),
    )


def _expanded(part: MlaPart, keys: NDArray[np.int32], block_size: int) -> ExpandedPart:
    room = _room(keys)
    (sums,) = _uploaded(part.seq_lens.device, _sums(room))
    row = torch.arange(int(room.sum()), dtype=torch.int32, device=sums.device)
    sequence = torch.bucketize(row, sums[1:], right=True)
    # Past its end a sequence repeats its last key, which always has a block.
    position = torch.minimum(row - sums[sequence], part.seq_lens[sequence] - 1)
    block = part.block_table[sequence, position // block_size]
    places = block.long() * block_size + position % block_size
    return ExpandedPart(**vars(part), places=places, starts=sums[:-1])


def _sums(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def _uploaded(device: torch.device, *arrays: NDArray[Any]) -> tuple[Tensor, ...]:
    """Upload as int32, from pinned memory, since other copies would wait for the device."""
    numbers = [array.astype(np.int32) for array in arrays]
    if device.type == "cpu":
        return tuple(torch.from_numpy(array) for array in numbers)
    return tuple(part.to(device, non_blocking=True) for part in pinned(numbers))
