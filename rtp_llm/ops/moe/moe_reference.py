# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of routing and of products sorted by expert."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.moe.moe import TILE_ENTRIES

_IDS = (torch.int32, torch.int64)


def _check_ids(ids: Tensor) -> None:
    if ids.dtype not in _IDS:
        raise RuntimeError(f"ids is {ids.dtype}; expected int32 or int64")


def _best(choice: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest of each row, the lowest index first among equals."""
    known = torch.where(choice.isnan(), -torch.inf, choice)
    return known.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _put(scores: Tensor, chosen: Tensor, ids: Tensor, weights: Tensor, renormalize: bool) -> None:
    picked = scores.gather(1, chosen)
    if renormalize:
        total = picked.sum(dim=-1, keepdim=True)
        picked = torch.where(total > 0, picked / total, picked)
    ids.copy_(chosen)
    weights.copy_(picked)


def select_topk_reference(logits: Tensor, ids: Tensor, weights: Tensor, renormalize: bool) -> None:
    """Plain PyTorch reference of `ops.select_topk`: same arguments and results."""
    _check_ids(ids)
    scores = logits.softmax(dim=-1)
    _put(scores, _best(scores, ids.shape[1]), ids, weights, renormalize)


def group_topk_reference(
    logits: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    weights: Tensor,
    scoring: str,
    num_groups: int,
    top_groups: int,
    group_best: int,
    renormalize: bool,
    scaling: float,
) -> None:
    """Plain PyTorch reference of `ops.group_topk`: same arguments and results."""
    _check_ids(ids)
    scores = logits.sigmoid() if scoring == "sigmoid" else logits.softmax(dim=-1)
    choice = scores if bias is None else scores + bias
    tokens, experts = logits.shape
    groups = choice.view(tokens, num_groups, experts // num_groups)
    of_group = groups.sort(dim=-1, descending=True).values[..., :group_best].sum(dim=-1)
    kept = torch.zeros_like(of_group, dtype=torch.bool)
    kept.scatter_(1, _best(of_group, top_groups), True)
    closed = ~kept.repeat_interleave(experts // num_groups, dim=1)
    _put(
        scores,
        _best(choice.masked_fill(closed, -torch.inf), ids.shape[1]),
        ids,
        weights,
        renormalize,
    )
    weights.mul_(scaling)


def fake_balance_expert_reference(
    ids: Tensor, scales: Tensor, expert_num: int, dp_rank: int, dp_size: int, ep_size: int
) -> None:
    """Plain PyTorch reference of `ops.fake_balance_expert`: same arguments and results."""
    _check_ids(ids)
    local = expert_num // ep_size
    rank0 = ep_size * dp_rank // dp_size
    expert0 = int(dp_rank * max(local / dp_size, 1.0)) % local
    i = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
    ids.copy_((rank0 + i) % ep_size * local + (expert0 + i // ep_size) % local)
    scales.fill_(1.0)


def sort_by_expert_reference(ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Plain PyTorch reference of `ops.sort_by_expert`: same arguments and results."""
    flat = ids.flatten()
    bucket = torch.where((flat >= 0) & (flat < num_experts), flat, num_experts)
    ordered, rows = bucket.sort(stable=True)
    places = torch.empty_like(rows)
    places[rows] = torch.arange(len(rows), device=ids.device)
    places = torch.where(bucket < num_experts, places, -1)
    experts = torch.arange(num_experts + 1, device=ids.device, dtype=ordered.dtype)
    offsets = torch.searchsorted(ordered, experts)
    return rows.int(), places.view(ids.shape).int(), offsets.int()


def grouped_linear_reference(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """See rtp_llm.ops.grouped_linear; every row meets every expert, so that nothing waits."""
    out = x.new_zeros(x.shape[0], weight.shape[1])
    row = torch.arange(x.shape[0], device=x.device)
    for expert in range(weight.shape[0]):
        mine = (row >= offsets[expert]) & (row < offsets[expert + 1])
        product = (x.float() @ weight[expert].float().T).to(x.dtype)
        out = torch.where(mine[:, None], product, out)
    return out


def sum_experts_reference(y: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Plain PyTorch reference of `ops.sum_experts`: same arguments and results."""
    if y.shape[0] == 0:
        return y.new_zeros(places.shape[0], y.shape[1])
    there = (places >= 0)[..., None]
    rows = torch.where(there, y[places.clamp(min=0)].float(), 0.0)
    return (rows * weights[..., None]).sum(dim=1).to(y.dtype)


def route_experts_reference(
    logits: Tensor,
    x: Tensor,
    shared_gate: Tensor | None,
    top_k: int,
    renormalize: bool,
    first: int = 0,
    count: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Plain PyTorch reference of `ops.route_experts`: same arguments and results."""
    tokens, experts = logits.shape
    ids = torch.empty(tokens, top_k, dtype=torch.int32, device=logits.device)
    weights = logits.new_empty(tokens, top_k)
    select_topk_reference(logits, ids, weights, renormalize)
    if count:
        ids, experts = ids - first, count
        ids = torch.where((ids >= 0) & (ids < count), ids, -1)
    if shared_gate is not None:
        share = (x.float() @ shared_gate.float().T).sigmoid()
        ids = torch.cat([ids, torch.full_like(ids[:, :1], experts)], dim=1)
        weights, experts = torch.cat([weights, share], dim=1), experts + 1
    rows, places, offsets = sort_by_expert_reference(ids, experts)
    return weights, rows, places, offsets, _tiles(offsets, rows, shared_gate is not None)


def _tiles(offsets: Tensor, rows: Tensor, shared_first: bool) -> Tensor:
    begins = offsets.tolist()
    order = list(range(len(begins) - 1))
    if shared_first:
        order.insert(0, order.pop())
    tiles = [
        expert << 16 | first
        for expert in order
        for first in range(begins[expert], begins[expert + 1], TILE_ENTRIES)
    ]
    return rows.new_tensor(tiles + [-1] * (len(rows) - len(tiles)))


def add_experts_reference(y: Tensor, places: Tensor, weights: Tensor, residual: Tensor) -> None:
    """Plain PyTorch reference of `ops.add_experts`: same arguments and results."""
    residual.copy_(residual.float() + sum_experts_reference(y.float(), places, weights))
