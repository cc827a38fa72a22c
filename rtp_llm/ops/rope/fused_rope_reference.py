# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of rotate_and_store."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rtp_llm.ops.norm.norm_reference import rms_norm_reference
from rtp_llm.ops.rope.rope_reference import rotate_heads

_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0}


def rotate_and_store_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    q_out: Tensor | None,
    k_out: Tensor | None,
    v_out: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    norm_offset: float,
    cos_sin: Tensor | None,
    positions: Tensor | None,
    cu_seqlens: Tensor | None,
    past_lengths: Tensor | None,
    offsets: Tensor | None,
    slots: Tensor | None,
    k_cache: Tensor | None,
    v_cache: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    scales: Tensor | None,
    is_neox: bool,
    rotary_offset: int,
    height_pairs: int,
    width_pairs: int,
    axes_interleaved: bool,
    log_length: int,
    padded_queries: int,
) -> None:
    """Plain PyTorch reference of `ops.rotate_and_store`: same arguments and results."""
    _Pass(locals()).run()


class _Pass:
    """One call: its arguments, which tokens there are, where they stand and where they go."""

    q: Tensor
    k: Tensor
    v: Tensor | None
    q_out: Tensor | None
    k_out: Tensor | None
    v_out: Tensor | None
    q_weight: Tensor | None
    k_weight: Tensor | None
    eps: float
    norm_offset: float
    cos_sin: Tensor | None
    positions: Tensor | None
    cu_seqlens: Tensor | None
    past_lengths: Tensor | None
    offsets: Tensor | None
    slots: Tensor | None
    k_cache: Tensor | None
    v_cache: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    scales: Tensor | None
    is_neox: bool
    rotary_offset: int
    height_pairs: int
    width_pairs: int
    axes_interleaved: bool
    log_length: int
    padded_queries: int

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.__dict__.update(arguments)
        tokens = torch.arange(self.q.shape[0], device=self.q.device)
        self.request, self.index = tokens, torch.zeros_like(tokens)
        if self.cu_seqlens is not None:
            tokens = tokens[: int(self.cu_seqlens[-1])]
            starts = self.cu_seqlens.long()
            self.request = torch.searchsorted(starts, tokens, right=True) - 1
            self.index = tokens - starts[self.request]
        past = self.past_lengths
        self.place = self.index if past is None else past[self.request] + self.index
        self.tokens = tokens
        self._keep_known_positions()

    def run(self) -> None:
        q, k = self._finished(self.q, self.q_weight), self._finished(self.k, self.k_weight)
        if self.log_length > 0:
            turned = self.axes[:, 0].double() + 1
            factor = (turned.log() / math.log(self.log_length)).clamp(min=1)
            q = (q.float() * factor.float()[:, None, None]).to(q.dtype)
        row = self.tokens
        if self.padded_queries > 0:
            row = self.request * self.padded_queries + self.index
        _put(self.q_out, row, q)
        _put(self.k_out, self.tokens, k)
        self._store(0, self.k_cache, self.k_scale, k)
        if self.v is not None:
            _put(self.v_out, self.tokens, self.v[self.tokens])
            self._store(1, self.v_cache, self.v_scale, self.v[self.tokens])

    def _keep_known_positions(self) -> None:
        axes = self.place if self.positions is None else self.positions[self.tokens]
        self.axes = axes.long()[:, None] if axes.dim() == 1 else axes.long()
        if self.cos_sin is None:
            return
        if not (self.height_pairs or self.width_pairs):
            self.axes = self.axes[:, :1]
        kept = ((self.axes >= 0) & (self.axes < self.cos_sin.shape[0])).all(dim=1)
        for name in ("tokens", "request", "index", "place", "axes"):
            setattr(self, name, getattr(self, name)[kept])

    def _finished(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        heads = heads[self.tokens]
        if weight is not None:
            heads = rms_norm_reference(heads, weight, self.eps, self.norm_offset)
        if self.cos_sin is None:
            return heads
        result = heads.clone()
        first, size = self.rotary_offset, self.cos_sin.shape[1]
        turning = heads[..., first : first + size]
        result[..., first : first + size] = rotate_heads(
            turning, self._angles(self.cos_sin), self.is_neox
        )
        return result

    def _angles(self, table: Tensor) -> Tensor:
        """A row of cosines and sines for each token, each pair's from the position of its axis."""
        rows = table[self.axes]
        pairs = table.shape[1] // 2
        axis = torch.zeros(pairs, dtype=torch.int64, device=rows.device)
        i = torch.arange(pairs, device=rows.device)
        if self.axes_interleaved:
            axis[(i % 3 == 1) & (i < 3 * self.height_pairs)] = 1
            axis[(i % 3 == 2) & (i < 3 * self.width_pairs)] = 2
        elif self.height_pairs or self.width_pairs:
            axis[pairs - self.width_pairs - self.height_pairs :] = 1
            axis[pairs - self.width_pairs :] = 2
        both = axis.repeat(2).expand(len(rows), 1, -1)
        return rows.gather(1, both)[:, 0]

    def _store(self, plane: int, cache: Tensor | None, scale: Tensor | None, heads: Tensor) -> None:
        if cache is None:
            return
        run = cache.shape[2] if cache.dim() == 6 else 1
        row, place = self._places(plane, cache.shape[1] * run)
        kept = (row >= 0) & (row < cache.shape[0])
        row, place, heads = row[kept], place[kept].long(), heads[kept]
        if scale is not None:
            heads = heads.float() / scale
        stored = _cast(heads, cache.dtype)
        if cache.dim() == 6:
            cache[row, place // run, place % run] = stored.view(
                *stored.shape[:-1], *cache.shape[4:]
            )
        else:
            cache[row, place] = stored
        if self.scales is not None:
            self.scales[row, place] = 1

    def _places(self, plane: int, size: int) -> tuple[Tensor, Tensor]:
        """Row and place in it of every token; row -1: nowhere."""
        if self.slots is not None:
            slot = self.slots[self.tokens].long()
            return torch.where(slot < 0, -1, slot // size), slot % size
        if self.offsets is None:
            raise RuntimeError("rotate_and_store: a cache needs either offsets or slots")
        block, width = self.place // size, self.offsets.shape[3]
        named = self.offsets[self.request, 0, plane, block.clamp(max=width - 1)].long()
        return torch.where(block < width, named, -1), self.place % size


def _put(out: Tensor | None, row: Tensor, heads: Tensor) -> None:
    if out is not None:
        out[row] = _cast(heads, out.dtype)


def _cast(heads: Tensor, dtype: torch.dtype) -> Tensor:
    largest = _LARGEST.get(dtype)
    return heads.to(dtype) if largest is None else heads.clamp(-largest, largest).to(dtype)
