"""One step's batch as the model sees it: built once per step, read by every layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ForwardBatch:
    """T new tokens of B sequences, prefill chunks and decodes mixed; index tensors are int32.

    A cache group is a set of layers that share a block table (same window). Lengths and blocks
    are those after the step's keys and values have been written:

    token_ids, positions [T]; cu_seqlens_q [B+1] prefix sums of new tokens; seq_lens [B] keys in
    all; slot_mapping per group [T] (block * block_size + offset, -1 = not written); block_table
    per group [B, M] (-1 = no block); kv_cache per layer [2, N, S, Hk, D]; layer_group per layer.
    max_seqlen_q and max_seqlen_k are host numbers, so that no layer has to ask the device.
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
