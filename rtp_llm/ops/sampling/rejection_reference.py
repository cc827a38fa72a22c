# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of rejection sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.sampling.rejection import ACCEPT_STEPS
from rtp_llm.ops.sampling.sampling_reference import (
    draw,
    philox_open_uniform,
    philox_uniform,
    sample_reference,
    weigh_rows,
)


def rejection_sample_reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    steps: Tensor,
    drafts: Tensor,
    draft_logits: Tensor,
    draft_columns: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See rtp_llm.ops.rejection_sample. Weights are float64."""
    settings = temperature, top_k, top_p, min_p
    plain, status = sample_reference(logits, *settings, seeds, steps)
    rows = weigh_rows(logits, *settings)
    draft_logits = draft_logits[: logits.shape[0]]
    usable = ~(draft_logits.isnan() | (draft_logits == torch.inf)).any(dim=1)
    usable &= draft_logits.isfinite().any(dim=1)
    usable &= (drafts >= 0) & (drafts < logits.shape[1]) & ~rows.greedy
    p = rows.weights / rows.weights.sum(dim=1, keepdim=True)
    scale = torch.where(usable, temperature, 1).double()[:, None]
    q = torch.softmax(torch.where(usable[:, None], draft_logits, 0).double() / scale, dim=1)
    if draft_columns is not None:
        known = (draft_columns >= 0) & (draft_columns < q.shape[1])
        q = torch.where(known, q.index_select(1, torch.where(known, draft_columns, 0)), 0)
    draft = torch.where(usable, drafts, 0).long()[:, None]
    limit = philox_open_uniform(seeds, steps + ACCEPT_STEPS)[:, None] * q.gather(1, draft)
    accepted = (limit < p.gather(1, draft))[:, 0]
    rest = (p - q).clamp(min=0)
    # Nothing is left only where rounding alone makes p and q differ.
    rest = torch.where((rest > 0).any(dim=1, keepdim=True), rest, p)
    sampled = draw(rest, philox_uniform(seeds, steps))
    verified = torch.where(accepted, draft[:, 0], sampled).int()
    return torch.where(usable, verified, plain), status
