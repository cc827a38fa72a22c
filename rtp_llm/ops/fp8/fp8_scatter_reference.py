# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of scatter_fp8 and scatter_fp8_ragged."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.fp8.fp8_blocks import (
    BLOCK,
    E4M3,
    column_major,
    quantize_rows,
)
from rtp_llm.ops.fp8.fp8_scatter import ragged_rows


def _placed(x: Tensor, ids: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """x's rows and their scales, quantised, at `rows` of [count, ...]."""
    here = rows >= 0
    wide = torch.nn.functional.pad(x, (0, -x.shape[1] % BLOCK))
    numbers, row_scales = quantize_rows(wide)
    token = torch.arange(len(x), device=x.device)[:, None].expand_as(ids)[here]
    q = torch.zeros(count, wide.shape[1], dtype=torch.uint8, device=x.device)
    q[rows[here]] = numbers.view(torch.uint8)[token]
    scales = torch.zeros(count, row_scales.shape[1], device=x.device)
    scales[rows[here]] = row_scales[token]
    return q.view(E4M3), scales


def _rows(ids: Tensor, places: Tensor, offsets: Tensor, starts: Tensor) -> Tensor:
    """Where each entry lies when its expert begins at `starts`, or -1."""
    here = (ids >= 0) & (ids < len(offsets) - 1)
    expert = torch.where(here, ids, 0)
    return torch.where(here, places - offsets[expert] + starts[expert], -1)


def scatter_fp8_reference(
    x: Tensor, ids: Tensor, places: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plain PyTorch reference of `ops.scatter_fp8`: same arguments and results."""
    tokens, experts = len(x), offsets.shape[0] - 1
    starts = torch.arange(experts, device=x.device) * tokens
    rows = _rows(ids, places, offsets, starts)
    q, scales = _placed(x, ids, rows, experts * tokens)
    by_expert = scales.view(experts, tokens, scales.shape[1])
    shaped = q.view(experts, tokens, q.shape[1])
    return shaped, column_major(by_expert), rows.to(torch.int32), offsets.diff()


def scatter_fp8_ragged_reference(
    x: Tensor, ids: Tensor, places: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Plain PyTorch reference of `ops.scatter_fp8_ragged`: same arguments and results."""
    firsts = [ragged_rows(offset, slot) for slot, offset in enumerate(offsets.tolist())]
    starts = torch.tensor(firsts, dtype=torch.int32, device=x.device)
    rows = _rows(ids, places, offsets, starts)
    q, scales = _placed(x, ids, rows, ragged_rows(ids.numel(), len(offsets) - 1))
    return q, column_major(scales), rows.to(torch.int32), starts, offsets.diff()
