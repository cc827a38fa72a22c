"""Plain PyTorch reference and Meta function of rotate_and_store."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rtp_llm.ops.norm_reference import rms_norm_reference
from rtp_llm.ops.rope_reference import _rotated

_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0}


def rotate_and_store_reference(*arguments: Any) -> None:
    """See rtp_llm.ops.rotation.rotate_and_store; arguments in the order of the schema."""
    _Pass(*arguments).run()


def rotate_and_store_meta(*_arguments: Any) -> None:
    """Changes its arguments only."""


class _Pass:
    """One call: which tokens there are, where they stand and where they go."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor | None, *rest: Any) -> None:
        self.q, self.k, self.v = q, k, v
        (self.q_out, self.k_out, self.v_out, self.q_weight, self.k_weight, self.eps) = rest[:6]
        (self.cos_sin, self.given, self.cu_seqlens, self.past) = rest[6:10]
        (self.offsets, self.slots, self.k_cache, self.v_cache) = rest[10:14]
        (self.k_scale, self.v_scale, self.scales) = rest[14:17]
        (self.is_neox, self.rotary_offset, self.height, self.width) = rest[17:21]
        (self.interleaved, self.log_length, self.padded_queries) = rest[21:]
        tokens = torch.arange(q.shape[0], device=q.device)
        self.request, self.index = tokens, torch.zeros_like(tokens)
        if self.cu_seqlens is not None:
            tokens = tokens[: int(self.cu_seqlens[-1])]
            starts = self.cu_seqlens.long()
            self.request = torch.searchsorted(starts, tokens, right=True) - 1
            self.index = tokens - starts[self.request]
        self.place = self.index if self.past is None else self.past[self.request] + self.index
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
        axes = self.place if self.given is None else self.given[self.tokens]
        self.axes = axes.long()[:, None] if axes.dim() == 1 else axes.long()
        if self.cos_sin is None:
            return
        if not (self.height or self.width):
            self.axes = self.axes[:, :1]
        kept = ((self.axes >= 0) & (self.axes < self.cos_sin.shape[0])).all(dim=1)
        for name in ("tokens", "request", "index", "place", "axes"):
            setattr(self, name, getattr(self, name)[kept])

    def _finished(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        heads = heads[self.tokens]
        if weight is not None:
            heads = rms_norm_reference(heads, weight, self.eps)
        if self.cos_sin is None:
            return heads
        result = heads.clone()
        first, size = self.rotary_offset, self.cos_sin.shape[1]
        turning = heads[..., first : first + size]
        result[..., first : first + size] = _rotated(turning, self._angles(), self.is_neox)
        return result

    def _angles(self) -> Tensor:
        """A row of cosines and sines for each token, each pair's from the position of its axis."""
        rows: Tensor = self.cos_sin[self.axes]
        pairs = self.cos_sin.shape[1] // 2
        axis = torch.zeros(pairs, dtype=torch.int64, device=rows.device)
        i = torch.arange(pairs, device=rows.device)
        if self.interleaved:
            axis[(i % 3 == 1) & (i < 3 * self.height)] = 1
            axis[(i % 3 == 2) & (i < 3 * self.width)] = 2
        elif self.height or self.width:
            axis[pairs - self.width - self.height :] = 1
            axis[pairs - self.width :] = 2
        both = axis.repeat(2).expand(len(rows), 1, -1)
        return rows.gather(1, both)[:, 0]

    def _store(self, plane: int, cache: Tensor | None, scale: Tensor | None, heads: Tensor) -> None:
        if cache is None:
            return
        size = cache.shape[1]
        if self.slots is not None:
            slot = self.slots[self.tokens].long()
            row, place = torch.where(slot < 0, -1, slot // size), slot % size
        else:
            block, place = self.place // size, self.place % size
            width = self.offsets.shape[3]
            named = self.offsets[self.request, 0, plane, block.clamp(max=width - 1)].long()
            row = torch.where(block < width, named, -1)
        kept = (row >= 0) & (row < cache.shape[0])
        row, place, heads = row[kept], place[kept].long(), heads[kept]
        if scale is not None:
            heads = heads.float() / scale
        cache[row, place] = _cast(heads, cache.dtype)
        if self.scales is not None:
            self.scales[row, place] = 1


def _put(out: Tensor | None, row: Tensor, heads: Tensor) -> None:
    if out is not None:
        out[row] = _cast(heads, out.dtype)


def _cast(heads: Tensor, dtype: torch.dtype) -> Tensor:
    largest = _LARGEST.get(dtype)
    return heads.to(dtype) if largest is None else heads.clamp(-largest, largest).to(dtype)
