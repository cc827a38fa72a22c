# SPDX-License-Identifier: Apache-2.0
"""A step as the fused RoPE operators see it, and how a captured step is updated for replay."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Protocol

import torch
from torch import Tensor

from rtp_llm.compat.attention_inputs import PyAttentionInputs

_INT32_MAX = 2**31 - 1
# Values for requests missing in a smaller step: no tokens, no blocks. Prefix sums stay constant.
_NOTHING = {"kv_cache_offset": -1}
_OWN = ("output", "kv_output", "padding_offset")
_SUMS = ("cu_seqlens", "cu_kv_seqlens")


def convert_offset_to_block_array(table: Tensor, num_blocks: int | None = None) -> Tensor:
    """Convert a block table to cache rows of keys and of values, int32 [B, 1, 2, M].

    table int32 [B, M] of kernel blocks. num_blocks None: keys and values alternate, in rows 2 * id
    and 2 * id + 1; a number N: rows id and N + id. Negative ids (no block) become -1, which kernels
    skip.
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


def padding_offsets(cu_seqlens: Tensor, tokens: int, stride: int) -> Tensor:
    """int32 [tokens]: padded row minus token index, with request b starting at row b * stride."""
    token = torch.arange(tokens, dtype=torch.int32, device=cu_seqlens.device)
    request = torch.searchsorted(cu_seqlens[1:], token, right=True, out_int32=True)
    request.clamp_(max=len(cu_seqlens) - 2)
    return request * stride - cu_seqlens[request]


class StepMaker(Protocol):
    """The operator that prepared a step."""

    def offsets_of(self, table: Tensor) -> Tensor:
        """The block offset array of a block table [B, M]."""

    def step(self, inputs: PyAttentionInputs, output: Tensor | None) -> FusedRopeAttnParams:
        """Prepare a step whose results are written to `output` (None: a new buffer)."""


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
    tokens: int  # new ones of all requests
    max_seq_len: int
    max_prefix_length: int
    context_total_kv_length: int
    decode_plan: bool
    dtype: torch.dtype
    output: Tensor  # of every layer of the step: query heads, or all heads
    prepared_by: StepMaker
    padded_queries: int = 0  # rows of a request in the output; 0: as many as it has tokens
    kv_cache_offset_h: Tensor | None = None  # no kernel reads offsets on the host
    kv_output: Tensor | None = None  # of layers without a cache, where one was to be expected
    _most: dict[str, int] = field(init=False, repr=False)  # what a graph was captured for

    def __post_init__(self) -> None:
        limits = ("tokens", "max_seq_len", "max_prefix_length")
        self._most = {name: getattr(self, name) for name in limits}

    def copy_(self, fresh: FusedRopeAttnParams) -> None:
        """Copy another step into this one in place, to replay a graph captured with this one.

        Requests that the other step lacks become empty, and a narrower block table is padded with
        zeros. Raises RuntimeError for more requests, a wider table, more tokens in total, or
        lengths beyond those of the capture.
        """
        self._check(**{name: getattr(fresh, name) for name in self._most})
        for entry in fields(self):
            old, new = getattr(self, entry.name, None), getattr(fresh, entry.name, None)
            if entry.name in _OWN or not isinstance(old, Tensor):
                continue
            copy_into(entry.name, old, new)
        if self.padded_queries > 0:
            self._pad_again()
            self.output.zero_()
        elif self.padding_offset is not None:
            copy_into("padding_offset", self.padding_offset, fresh.padding_offset)

    def prepare_in_place(self, inputs: PyAttentionInputs) -> None:
        """prepare() and copy_() in one call, without allocating a buffer for the new step."""
        self.copy_(self.prepared_by.step(inputs, self.output))

    def keys_and_values(self, heads: int) -> Tensor:
        """The step's buffer [T, heads, D] for keys and values; queries have a separate one."""
        if self.kv_output is None:
            tokens, _, size = self.output.shape
            self.kv_output = self.output.new_zeros(tokens, heads, size)
        return self.kv_output

    def update_kv_cache_offset(self, table: Tensor) -> None:
        """Copy another block table [B, M] in place; RuntimeError if it does not fit."""
        if self.kv_cache_offset is None:
            raise RuntimeError("the step was prepared without a block table")
        copy_into("kv_cache_offset", self.kv_cache_offset, self.prepared_by.offsets_of(table))

    def update_prefill_runtime(self, max_seq_len: int, max_prefix_length: int) -> None:
        """Set the maximum lengths of a replay; RuntimeError if they exceed the capture's."""
        self._check(max_seq_len=max_seq_len, max_prefix_length=max_prefix_length)
        self.max_seq_len, self.max_prefix_length = max_seq_len, max_prefix_length

    def _check(self, **counts: int) -> None:
        for name, count in counts.items():
            if count > self._most[name]:
                raise RuntimeError(
                    f"{name} is {count}; the graph was captured for {self._most[name]}"
                )

    def _pad_again(self) -> None:
        """Keep rows where they were captured, regardless of this step's longest query."""
        if self.padding_offset is None or self.cu_seqlens is None:
            return
        tokens = len(self.padding_offset)
        self.padding_offset.copy_(padding_offsets(self.cu_seqlens, tokens, self.padded_queries))


# An alias under the name that ROCm's attention uses.
CKAttn = FusedRopeAttnParams


def copy_into(name: str, old: Tensor, new: Tensor | None) -> None:
    """old = new in place, as FusedRopeAttnParams.copy_ says."""
    narrower = name == "kv_cache_offset"
    if new is None or not _fits(new.shape, old.shape, narrower):
        found = None if new is None else list(new.shape)
        raise RuntimeError(f"{name} is {found}; the graph was captured for {list(old.shape)}")
    requests = len(new)
    rest = old[requests:]
    if name in _SUMS and requests:
        rest.copy_(new[-1:].expand(rest.shape))
    else:
        rest.fill_(_NOTHING.get(name, 0))
    if narrower:
        old[:requests, ..., new.shape[-1] :].zero_()
        old[:requests, ..., : new.shape[-1]].copy_(new)
    else:
        old[:requests].copy_(new)


def _fits(new: torch.Size, old: torch.Size, narrower: bool) -> bool:
    """Whether there are no more requests and other sizes match, except a table's width."""
    if len(new) != len(old) or new[0] > old[0]:
        return False
    inner = len(old) - 1 if narrower else len(old)
    return new[1:inner] == old[1:inner] and (not narrower or new[-1] <= old[-1])
