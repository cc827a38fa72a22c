# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of linear attention: token by token, sequence by sequence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class _Chunk:
    """Rows `rows` of a step, at positions start.., of a sequence with these blocks."""

    rows: slice
    start: int
    read: int
    write: int

    @property
    def positions(self) -> range:
        return range(self.start, self.start + self.rows.stop - self.rows.start)


def _chunks(
    cu_seqlens_q: Tensor, seq_lens: Tensor, state_read: Tensor, state_write: Tensor, blocks: int
) -> Iterator[_Chunk]:
    rows = itertools.pairwise(cu_seqlens_q.tolist())
    others = zip(seq_lens.tolist(), state_read.tolist(), state_write.tolist(), strict=True)
    for (first, last), (length, read, write) in zip(rows, others, strict=True):
        if last > first:
            start = length - (last - first)
            yield _Chunk(slice(first, last), start, read, write if 0 <= write < blocks else -1)


def causal_conv1d_reference(
    x: Tensor,
    weight: Tensor,
    inputs: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    state_read: Tensor,
    state_write: Tensor,
    max_seqlen_q: int,
    early: bool = False,
    bias: Tensor | None = None,
) -> Tensor:
    """Plain PyTorch reference of `ops.causal_conv1d`: same arguments and results."""
    blocks, ring, channels = inputs.shape
    before = weight.shape[1] - 1
    start = None if bias is None else bias.float()
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    for chunk in _chunks(cu_seqlens_q, seq_lens, state_read, state_write, blocks):
        earlier = range(chunk.start - before, chunk.start)
        rows = [
            inputs[chunk.read, p % ring] if p >= 0 and chunk.read >= 0 else x.new_zeros(channels)
            for p in earlier
        ]
        line = torch.cat([torch.stack(rows), x[chunk.rows]]) if rows else x[chunk.rows]
        kernel = weight.float()[:, None]
        mixed = functional.conv1d(line.float().T[None], kernel, start, groups=channels)[0].T
        out[chunk.rows] = functional.silu(mixed).to(x.dtype)
        if chunk.write >= 0:
            known = [p for p in (*earlier, *chunk.positions) if p >= 0][-ring:]
            for position in known:
                inputs[chunk.write, position % ring] = line[position - earlier.start]
    return out


def gated_delta_rule_reference(
    qkv: Tensor,
    ba: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    ring_k: Tensor,
    ring_u: Tensor,
    ring_g: Tensor,
    folded: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    state_read: Tensor,
    state_write: Tensor,
    max_seqlen_q: int,
    early: bool = False,
) -> Tensor:
    """Plain PyTorch reference of `ops.gated_delta_rule`: same arguments and results."""
    blocks, heads, values, size = state.shape
    key_heads, ring = ring_k.shape[2], ring_k.shape[1]
    q, k, v = torch.split(qkv, [key_heads * size, key_heads * size, heads * values], dim=1)
    q, k = (each.reshape(-1, key_heads, size) for each in (q, k))
    v = v.reshape(-1, heads, values).float()
    beta = ba[:, :heads].float().sigmoid()
    g = -a_log.float().exp() * functional.softplus(ba[:, heads:].float() + dt_bias.float())
    out = torch.zeros_like(v)
    for chunk in _chunks(cu_seqlens_q, seq_lens, state_read, state_write, blocks):
        now = state.new_zeros(heads, values, size, dtype=torch.float32)
        done = chunk.start
        if chunk.read >= 0:
            now, done = state[chunk.read].float(), int(folded[chunk.read, 0, 0])
        for position in range(done, chunk.start):
            row = chunk.read, position % ring
            keys = _per_value_head(_unit(ring_k[row]), heads)
            now = ring_g[row].exp()[:, None, None] * now + ring_u[row][:, :, None] * keys[:, None]
        at_start, end = now, chunk.positions.stop
        short = end - chunk.start <= ring // 2
        stays = short and chunk.read == chunk.write and end - done <= ring // 2
        for token, position in enumerate(chunk.positions, chunk.rows.start):
            keys = _per_value_head(_unit(k[token]), heads)
            queries = _per_value_head(_unit(q[token]), heads) * size**-0.5
            now = g[token].exp()[:, None, None] * now
            u = beta[token][:, None] * (v[token] - torch.einsum("hvk,hk->hv", now, keys))
            now = now + u[:, :, None] * keys[:, None]
            out[token] = torch.einsum("hvk,hk->hv", now, queries)
            if short and chunk.write >= 0:
                row = chunk.write, position % ring
                ring_k[row], ring_u[row], ring_g[row] = k[token], u, g[token]
        if chunk.write >= 0 and not stays:
            state[chunk.write] = at_start if short else now
            folded[chunk.write] = chunk.start if short else end
    return out.to(qkv.dtype)


def _unit(x: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)


def _per_value_head(x: Tensor, heads: int) -> Tensor:
    """[Hk, D] -> [Hv, D]: consecutive value heads share a key head."""
    return x.repeat_interleave(heads // x.shape[0], dim=0)


def mamba2_scan_reference(
    xbc: Tensor,
    dt: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    d: Tensor,
    state: Tensor,
    ring_k: Tensor,
    ring_u: Tensor,
    ring_g: Tensor,
    folded: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    state_read: Tensor,
    state_write: Tensor,
    max_seqlen_q: int,
    dt_min: float,
    dt_max: float,
    early: bool = False,
) -> Tensor:
    """Plain PyTorch reference of `ops.mamba2_scan`: same arguments and results."""
    blocks, heads, values, size = state.shape
    groups, ring = ring_k.shape[2], ring_k.shape[1]
    x, b, c = torch.split(xbc, [heads * values, groups * size, groups * size], dim=1)
    x = x.reshape(-1, heads, values).float()
    b, c = (each.reshape(-1, groups, size) for each in (b, c))
    step = functional.softplus(dt.float() + dt_bias).clamp(dt_min, dt_max)
    g, u = -a_log.exp() * step, step[:, :, None] * x
    out = torch.zeros_like(x)
    for chunk in _chunks(cu_seqlens_q, seq_lens, state_read, state_write, blocks):
        now, done = torch.zeros_like(state[0], dtype=torch.float32), chunk.start
        if chunk.read >= 0:
            now, done = state[chunk.read].float(), int(folded[chunk.read, 0, 0])
        for position in range(done, chunk.start):
            row = chunk.read, position % ring
            now = _advanced(now, ring_g[row], ring_u[row], ring_k[row])
        at_start, end = now, chunk.positions.stop
        short = end - chunk.start <= ring // 2
        stays = short and chunk.read == chunk.write and end - done <= ring // 2
        for token, position in enumerate(chunk.positions, chunk.rows.start):
            now = _advanced(now, g[token], u[token], b[token])
            queries = c[token].float().repeat_interleave(heads // groups, dim=0)
            out[token] = torch.einsum("hpn,hn->hp", now, queries) + d[:, None] * x[token]
            if short and chunk.write >= 0:
                row = chunk.write, position % ring
                ring_k[row], ring_u[row], ring_g[row] = b[token], u[token], g[token]
        if chunk.write >= 0 and not stays:
            state[chunk.write] = at_start if short else now
            folded[chunk.write] = chunk.start if short else end
    return out.to(xbc.dtype)


def _advanced(state: Tensor, g: Tensor, u: Tensor, b: Tensor) -> Tensor:
    """exp(g) S + u b^T of every head: g [H], u [H, P], b [G, N]."""
    keys = b.float().repeat_interleave(len(u) // len(b), dim=0)
    return g.exp()[:, None, None] * state + u[:, :, None] * keys[:, None]
