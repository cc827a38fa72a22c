# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of the selection of beams."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def select_beams_reference(
    values: Tensor,
    ids: Tensor,
    rows: Tensor,
    scores: Tensor,
    cu_beams: Tensor,
    cu_groups: Tensor,
    diversity_penalty: Tensor,
    stop_ids: Tensor,
    cu_stops: Tensor,
    k: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plain PyTorch reference of `ops.select_beams`: same arguments and results."""
    shape, columns = (len(cu_beams) - 1, k), values.shape[1]
    parents = torch.full(shape, -1, dtype=torch.int32, device=values.device)
    tokens = parents.clone()
    totals = torch.full(shape, -torch.inf, device=values.device)
    logprobs = totals.clone()
    beams, stops = cu_beams.tolist(), cu_stops.tolist()
    for search, (first, last) in enumerate(pairwise(cu_groups.tolist())):
        own_stops = stop_ids[stops[search] : stops[search + 1]]
        chosen = ids.new_empty(0)
        for group in range(first, last):
            own = slice(beams[group], beams[group + 1])
            has_row = rows[own] >= 0
            at = rows[own].clamp(min=0).long()
            own_values = torch.where(has_row[:, None], values[at], -torch.inf)
            counts = (ids[at][:, :, None] == chosen).sum(2)
            total = scores[own, None] + (own_values - diversity_penalty[search] * counts)
            order = total.flatten().sort(descending=True, stable=True)
            count = min(k, int((order.values > -torch.inf).sum()))
            best = order.indices[:count]
            tokens[group, :count] = ids[at].flatten()[best]
            parents[group, :count] = (best // columns).int()
            totals[group, :count] = order.values[:count]
            logprobs[group, :count] = own_values.flatten()[best]
            going = tokens[group, :count][~torch.isin(tokens[group, :count], own_stops)]
            chosen = torch.cat((chosen, going[: len(has_row)]))
    return parents, tokens, totals, logprobs
