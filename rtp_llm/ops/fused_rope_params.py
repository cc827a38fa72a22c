"""A step as the fused RoPE operators see it, and how a captured one takes over another."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

_INT32_MAX = 2**31 - 1


def convert_offset_to_block_array(table: Tensor, num_blocks: int | None = None) -> Tensor:
    """int32 [B, 1, 2, M]: which row of the cache holds a block's keys, and which its values.

    table int32 [B, M] of kernel blocks. num_blocks None: rows take turns, 2 * id and 2 * id + 1; a
    number N: id and N + id. Negative ids (no block) become -1, which kernels skip.
    """
    if table.dtype != torch.int32 or table.dim() != 2:
        raise ValueError(f"the block table is {table.dtype} {list(table.shape)}; expected [B, M]")
    requests, width = table.shape
    if requests and (requests - 1) * width * 2 + width > _INT32_MAX:
        raise ValueError(f"a block table of {list(table.shape)} is more than int32 offsets reach")
    keys = table * 2 if num_blocks is None else table
    values = table * 2 + 1 if num_blocks is None else table + num_blocks
    offsets = torch.stack((keys, values), dim=1)
    return offsets.masked_fill_((table < 0).unsqueeze(1), -1).unsqueeze(1)


@dataclass
class FusedRopeAttnParams:
    """One step as the kernels see it; index tensors are int32 on the device."""

    kv_cache_offset: Tensor | None
    input_lengths: Tensor | None
    prefix_lengths: Tensor | None
    sequence_lengths: Tensor | None
    cu_seqlens: Tensor | None
    cu_kv_seqlens: Tensor | None
    padding_offset: Tensor | None
    position_ids: Tensor | None
    max_seq_len: int
    max_prefix_length: int
    context_total_kv_length: int
    decode_plan: bool
    dtype: torch.dtype
    output: Tensor  # of every layer of the step: query heads, or all heads
    padded_queries: int = 0
    kv_cache_offset_h: Tensor | None = None  # no kernel reads offsets on the host

    def copy_(self, fresh: FusedRopeAttnParams) -> None:
        """Take over another step in place, for the replay of a graph that was captured with this.

        Shapes must be equal, but for a narrower block table, whose rest is filled with zeros.
        RuntimeError otherwise, and when the lengths are beyond those of the capture.
        """
        for name in ("max_seq_len", "max_prefix_length"):
            if getattr(fresh, name) > getattr(self, name):
                raise RuntimeError(
                    f"{name} is {getattr(fresh, name)}; the graph was captured for "
                    f"{getattr(self, name)}"
                )
        for field in fields(self):
            old, new = getattr(self, field.name), getattr(fresh, field.name)
            if field.name in ("output", "kv_cache_offset_h") or not isinstance(old, Tensor):
                continue
            copy_into(field.name, old, new)
        if self.padded_queries > 0:
            self.output.zero_()


def copy_into(name: str, old: Tensor, new: Tensor | None) -> None:
    """old = new in place, as FusedRopeAttnParams.copy_ says."""
    if new is None or new.shape[:-1] != old.shape[:-1] or new.shape[-1] > old.shape[-1]:
        found = None if new is None else list(new.shape)
        raise RuntimeError(f"{name} is {found}; the graph was captured for {list(old.shape)}")
    if new.shape[-1] != old.shape[-1]:
        if name != "kv_cache_offset":
            raise RuntimeError(
                f"{name} is {list(new.shape)}; the graph was captured for {list(old.shape)}"
            )
        old[..., new.shape[-1] :].zero_()
    old[..., : new.shape[-1]].copy_(new)
