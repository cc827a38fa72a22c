# SPDX-License-Identifier: Apache-2.0
"""The rotary embedding's table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rtp_llm.ops.rope.rotary_table import RopeConfig, rope_table


class Rotary(nn.Module):
    """The cosines and sines of every position, computed once for all layers of a model.

    `cos_sin` is float32 [positions, rotary_dim], cosines in the first half; None without rotation.
    """

    cos_sin: Tensor | None

    def __init__(self, config: RopeConfig, num_positions: int, device: torch.device) -> None:
        super().__init__()
        table = None
        if config.style != "none":
            table = rope_table(config, num_positions, device)
        self.register_buffer("cos_sin", table, persistent=False)
