# SPDX-License-Identifier: Apache-2.0
"""One step's batch as the model sees it: built once per step, read by every layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.attention.embeddings import InputEmbeddings


@dataclass(frozen=True)
class HostNumbers:
    """Host copies of a ForwardBatch's numbers, for backends that plan a step on the host.

    All int32, and valid only while the step's layers are launched: the runtime may own the memory.
    Unless ``exact``, seq_lens are upper bounds, and blocks that precede every query's window may be
    listed, since only the device knows the lengths.
    """

    cu_seqlens_q: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    block_table: tuple[NDArray[np.int32], ...]
    exact: bool = True


@dataclass(frozen=True)
class ForwardBatch:
    """T new tokens of B sequences, prefill chunks and decodes mixed; index tensors are int32.

    A cache group is a set of layers that share a block table (equal specs, see
    rtp_llm.attention.cache_spec). Lengths and blocks are those after the step's keys and values
    have been written:

    token_ids, positions [T]; cu_seqlens_q [B+1] prefix sums of new tokens; seq_lens [B] keys in
    all; slot_mapping per group [T] (block * block_size + offset, -1 = not written); block_table
    per group [B, M] (-1 = no block); kv_cache per layer [2, N, S, Hk, D], with MLA [1, N, S, 1,
    R + P]; layer_group per layer. max_seqlen_q and max_seqlen_k are host numbers, so that no layer
    has to query the device. `host` has more host numbers; it is None if they would not match the
    step, as in graph capture. prepared: per group, the data its backend shares among its layers.
    Recurrent groups have states per layer [N, ...] each, and state_read and state_write per group
    [B]: the block from which a sequence's states are read (-1: a new sequence: its states are
    zero) and the block to which the states after the step's tokens are written (0 for padding,
    never -1). A published block is never overwritten, so the two may differ.
    hidden [T, C]: on every pipeline stage after the first, the input of its first layer, which the
    stage may overwrite.
    Only for models that need them (see model_inputs.py): mrope_offsets [T, 3], to be added to a
    position for its place on each axis; adapter_slots [B] (-1 = none); second_texts [B], where the
    second text of a sequence begins (0 = it has one); embeddings of placeholders.
    before_layer is called for each layer before it reads its cache, on_written once the writes of
    its keys and values are enqueued.
    """

    token_ids: Tensor
    positions: Tensor
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    slot_mapping: tuple[Tensor, ...]
    block_table: tuple[Tensor, ...]
    kv_cache: tuple[Tensor, ...]
    layer_group: tuple[int, ...]
    host: HostNumbers | None = None
    prepared: tuple[object, ...] = ()
    states: tuple[tuple[Tensor, ...], ...] = ()
    state_read: tuple[Tensor, ...] = ()
    state_write: tuple[Tensor, ...] = ()
    before_layer: Callable[[int], None] | None = None
    on_written: Callable[[int], None] | None = None
    hidden: Tensor | None = None
    mrope_offsets: Tensor | None = None
    adapter_slots: Tensor | None = None
    second_texts: Tensor | None = None
    embeddings: InputEmbeddings | None = None

    def wait_for_layer(self, layer: int) -> None:
        """Wait until what is loaded into `layer`'s cache is seen by work enqueued from now on.

        Called by the code that reads and writes the cache, first.
        """
        if self.before_layer is not None:
            self.before_layer(layer)

    def layer_written(self, layer: int) -> None:
        """Report that the writes of `layer`'s keys and values for this step are enqueued.

        Called by the code that writes them, before attention runs, so that a transfer of the layer
        can overlap with attention.
        """
        if self.on_written is not None:
            self.on_written(layer)
