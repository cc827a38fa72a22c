# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of drafts by n-grams."""

from __future__ import annotations

import torch
from torch import Tensor


def match_ngrams_reference(
    drafts: Tensor,
    history: Tensor,
    lens: Tensor,
    outputs: Tensor,
    cu_rows: Tensor,
    min_n: int,
    max_n: int,
) -> None:
    """Plain PyTorch reference of `ops.match_ngrams`: same arguments and results."""
    if not 1 <= min_n <= max_n:
        raise RuntimeError(f"match_ngrams: n-grams of {min_n} to {max_n} tokens")
    bounds, sizes = cu_rows.tolist(), lens.tolist()
    for output, row in enumerate(outputs.tolist()):
        begin, count = bounds[output], bounds[output + 1] - bounds[output] - 1
        if count <= 0:
            continue
        of = drafts[begin : begin + count]
        known = history[row, : sizes[row]] if 0 <= row < len(history) else history[0, :0]
        of.copy_(_following(known, min_n, max_n, count))


def _following(tokens: Tensor, min_n: int, max_n: int, count: int) -> Tensor:
    """int32 [count]."""
    for n in range(min(max_n, len(tokens) - 1), min_n - 1, -1):
        same = (tokens[:-1].unfold(0, n, 1) == tokens[len(tokens) - n :]).all(dim=1).nonzero()
        if len(same):
            first = int(same[0]) + n
            period = len(tokens) - first
            return tokens[first + torch.arange(count, device=tokens.device) % period]
    return tokens.new_full((count,), -1)


def append_accepted_reference(
    history: Tensor, lens: Tensor, outputs: Tensor, cu_rows: Tensor, tokens: Tensor, drafts: Tensor
) -> None:
    """Plain PyTorch reference of `ops.append_accepted`: same arguments and results."""
    bounds, sizes = cu_rows.tolist(), lens.tolist()
    for output, row in enumerate(outputs.tolist()):
        begin, end = bounds[output], bounds[output + 1]
        if not 0 <= row < len(history) or begin >= end:
            continue
        sampled, drafted = tokens[begin:end].tolist(), drafts[begin : end - 1].tolist()
        count = 1
        while count < len(sampled) and sampled[count - 1] == drafted[count - 1]:
            count += 1
        count = min(count, history.shape[1] - sizes[row])
        history[row, sizes[row] : sizes[row] + count] = tokens[begin : begin + count]
        lens[row] = sizes[row] + count
