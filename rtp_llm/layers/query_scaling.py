# SPDX-License-Identifier: Apache-2.0
"""Queries that grow with their position, as Llama 4 and Ministral 3 have them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rtp_llm.attention import ForwardBatch
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.options import LayerOptions


@dataclass(frozen=True)
class QueryScaling:
    """The query at position p is multiplied by 1 + beta ln(1 + floor((p + shift) / length))."""

    beta: float
    length: int
    shift: int = 0


class QueryScales(Layer):
    """Scales queries in place."""

    table: Tensor

    def __init__(self, scaling: QueryScaling, options: LayerOptions) -> None:
        super().__init__()
        longest = options.settings.max_seq_len
        assert longest is not None, "settings of an engine"
        positions = torch.arange(longest, device=options.device) + scaling.shift
        steps = torch.div(positions, scaling.length, rounding_mode="floor")
        table = 1 + scaling.beta * steps.float().log1p()
        self.register_buffer("table", table[:, None], persistent=False)

    def forward(self, queries: Tensor, batch: ForwardBatch) -> None:
        """Multiply queries [T, channels], whose row stride is free, in place."""
        queries.mul_(self.table[batch.positions])
