# SPDX-License-Identifier: Apache-2.0
"""The tensor rope_freqs of files: by what the angles of pairs of channels are divided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def rope_divisors(config: Any) -> Tensor | None:
    """What the converter writes for a config; None: nothing."""
    settings = config.rope_parameters
    if settings.get("rope_type") == "llama3":
        return llama3_divisors(settings, config.head_dim)
    kind = settings.get("full_attention", {}).get("rope_type")
    return _proportional_divisors(config) if kind == "proportional" else None


def llama3_divisors(settings: Mapping[str, Any], head_dim: int) -> Tensor:
    """What the converter writes as rope_freqs: by what each frequency is divided."""
    low = settings["original_max_position_embeddings"] / settings["low_freq_factor"]
    high = settings["original_max_position_embeddings"] / settings["high_freq_factor"]
    divisors = []
    for pair in range(head_dim // 2):
        length = 2 * math.pi * settings["rope_theta"] ** (2 * pair / head_dim)
        if length < high:
            divisors.append(1.0)
        elif length > low:
            divisors.append(settings["factor"])
        else:
            smooth = settings["original_max_position_embeddings"] / length
            smooth = (smooth - settings["low_freq_factor"]) / (
                settings["high_freq_factor"] - settings["low_freq_factor"]
            )
            divisors.append(1 / ((1 - smooth) / settings["factor"] + smooth))
    return torch.tensor(divisors)


def _proportional_divisors(config: Any) -> Tensor:
    """Channels that do not turn are divided by a large number."""
    full = config.rope_parameters["full_attention"]
    pairs = config.per_layer_config["full_attention"].head_dim // 2
    turning = int(full["partial_rotary_factor"] * pairs)
    return torch.where(torch.arange(pairs) < turning, 1.0, 1e30)
