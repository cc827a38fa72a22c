# SPDX-License-Identifier: Apache-2.0
"""Heads that are rotated, and the table that they are rotated by."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_POSITIONS = 64
# query heads, KV heads, head size, rotary size, rotary offset
LAYOUTS = [
    (1, 1, 2, 2, 0),
    (4, 2, 64, 64, 0),
    (7, 1, 80, 80, 0),
    (2, 2, 128, 32, 0),
    (3, 1, 48, 18, 5),
    (1, 1, 256, 160, 96),
    (16, 2, 256, 64, 0),  # Qwen3-Next
]


def rotary_table(rotary_dim: int) -> Tensor:
    """Cosines and sines [MAX_POSITIONS, rotary_dim] of random angles."""
    angles = torch.rand(MAX_POSITIONS, rotary_dim // 2) * 6.28
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
