"""Plain PyTorch reference and Meta function of scatter_fp8."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.fp8_blocks import (
    BLOCK,
    E4M3,
    column_major,
    num_blocks,
    quantize_rows,
    scale_rows,
)


def scatter_fp8_reference(
    x: Tensor, ids: Tensor, places: Tensor, offsets: Tensor, ragged: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See rtp_llm.ops.scatter_fp8."""
    tokens, experts = len(x), offsets.shape[0] - 1
    here = (ids >= 0) & (ids < experts)
    expert = torch.where(here, ids, 0)
    planes, plane_rows = (1, ids.numel()) if ragged else (experts, tokens)
    own = places if ragged else places - offsets[expert] + expert * tokens
    rows = torch.where(here, own, -1)
    wide = torch.nn.functional.pad(x, (0, -x.shape[1] % BLOCK))
    numbers, row_scales = quantize_rows(wide)
    token = torch.arange(tokens, device=x.device)[:, None].expand_as(ids)[here]
    q = torch.zeros(planes * plane_rows, wide.shape[1], dtype=torch.uint8, device=x.device)
    q[rows[here]] = numbers.view(torch.uint8)[token]
    scales = torch.zeros(planes * plane_rows, row_scales.shape[1], device=x.device)
    scales[rows[here]] = row_scales[token]
    shape = (plane_rows,) if ragged else (planes, plane_rows)
    by_plane = scales.view(*shape, row_scales.shape[1])
    shaped = q.view(E4M3).view(*shape, wide.shape[1])
    return shaped, column_major(by_plane), rows.to(torch.int32), offsets.diff()


def scatter_fp8_meta(
    x: Tensor, ids: Tensor, places: Tensor, offsets: Tensor, ragged: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shapes and dtypes of scatter_fp8."""
    experts, blocks = offsets.shape[0] - 1, num_blocks(x.shape[1])
    planes, rows = ((), ids.shape[0] * ids.shape[1]) if ragged else ((experts,), len(x))
    return (
        x.new_empty((*planes, rows, blocks * BLOCK), dtype=E4M3),
        x.new_empty((*planes, blocks, scale_rows(rows)), dtype=torch.float32),
        ids.new_empty(ids.shape),
        ids.new_empty(experts),
    )
