# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts that were sampled from a distribution of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import operator

# Offsets of Philox steps that never collide with those of `sample`: a sequence has fewer tokens.
# A draft is sampled at the first, and accepted or rejected at the second.
DRAFT_STEPS, ACCEPT_STEPS = 1 << 32, 2 << 32


@operator(optional=True)
def rejection_sample(
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
    """Sample one token per row as `sample` does, keeping the row's draft wherever it is accepted.

    The arguments up to ``steps`` are as for `sample`; p is the distribution that it samples from.
    drafts int32 [R]; draft_logits float32 [R or more, D], D <= V: the draft of row r was sampled
    from q, the softmax of its row at the row's temperature. draft_columns int32 [V]: the column of
    each token in draft_logits; outside [0, D) = none, q is 0; None: token i in column i.

    A draft d is accepted if u * q(d) < p(d), where u is uniform in the open interval (0, 1); else
    the token is sampled from max(p - q, 0), which is 0 at d: the token is d if and only if d was
    accepted. Rows with a draft outside the vocabulary (-1), with temperature 0 or top_k 1, or with
    NaN, +inf or nothing finite in draft_logits get the token of `sample`, which is also right for a
    draft that was not chosen at random.

    Random numbers are Philox4x32-10 of (seed, step): u at step + ACCEPT_STEPS, the sample at step.
    Drafts must use other steps: DRAFT_STEPS and above.

    Returns tokens int32 [R] and status int8 [R], as `sample`. RuntimeError on a mismatch.

    Source: Leviathan et al., "Fast inference from transformers via speculative decoding" (2023).
    """
    rows = logits.shape[0]
    return logits.new_empty(rows, dtype=torch.int32), logits.new_empty(rows, dtype=torch.int8)
