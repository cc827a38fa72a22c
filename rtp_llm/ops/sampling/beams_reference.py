# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the operators of beam search."""

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
) -> tuple[Tensor, Tensor]:
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
    return torch.stack((parents, tokens)), torch.stack((totals, logprobs))


def choose_beams_reference(
    numbers: Tensor,
    values: Tensor,
    widths: Tensor,
    rows: Tensor,
    cu_beams: Tensor,
    cu_groups: Tensor,
    stop_ids: Tensor,
    cu_stops: Tensor,
    scores: Tensor,
    beam_parents: Tensor,
    row_tokens: Tensor,
) -> None:
    """Plain PyTorch reference of `ops.choose_beams`: same arguments and results."""
    (parents, tokens), totals, stops = numbers, values[0], cu_stops.tolist()
    for search, groups in enumerate(pairwise(cu_groups.tolist())):
        own_stops = stop_ids[stops[search] : stops[search + 1]]
        for group in range(*groups):
            goes = (tokens[group] >= 0) & ~torch.isin(tokens[group], own_stops)
            best = goes.nonzero()[: int(widths[group]), 0]
            first = int(cu_beams[group])
            beams = slice(first, first + len(best))
            scores[beams] = totals[group, best]
            beam_parents[beams] = parents[group, best] + first
            has_row = rows[beams] >= 0
            row_tokens[rows[beams][has_row].long()] = tokens[group, best][has_row]


def order_beams_reference(
    block_table: Tensor,
    slot_mapping: Tensor,
    positions: Tensor,
    sequences: Tensor,
    beam_parents: Tensor,
    cu_beams: Tensor,
    block_size: int,
) -> Tensor:
    """Plain PyTorch reference of `ops.order_beams`: same arguments and results."""
    pairs = sequences.new_full((len(sequences), 2), -1)
    before = block_table.clone()
    for first, end in pairwise(cu_beams.tolist()):
        own = sequences[first:end].long()
        if first == end or int(own[0]) < 0:
            continue
        last, offset = divmod(int(positions[own[0]]), block_size)
        parents = (beam_parents[first:end] - first).tolist()
        owners = list(range(end - first)) if offset == 0 else _last_block_owners(parents)
        source, target = before[own[parents], last], before[own[owners], last]
        block_table[own, :last] = before[own[parents], :last]
        block_table[own, last] = target
        slot_mapping[own] = target * block_size + offset
        if offset:
            moved = source != target
            pairs[first:end][moved] = torch.stack((source, target), 1)[moved]
    return pairs


def _last_block_owners(parents: list[int]) -> list[int]:
    """Whose last block each beam gets, as LastBlockOwners of the runtime says."""
    childless = iter([each for each in range(len(parents)) if each not in parents])
    first = [parent not in parents[:beam] for beam, parent in enumerate(parents)]
    return [
        parent if is_first else next(childless)
        for parent, is_first in zip(parents, first, strict=True)
    ]
