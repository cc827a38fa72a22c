# SPDX-License-Identifier: Apache-2.0
"""How weights stored in FP8 blocks are used, with messages that explain it."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from rtp_llm.layers import local_target, weight_targets
from rtp_llm.layers.weights.fp8_targets import DequantizingTarget
from rtp_llm.models.refusals import refuse

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.loader.checkpoint import Checkpoint
    from rtp_llm.models.config import ModelConfig

_logger = logging.getLogger("rtp_llm.loader")
_MIB = 2**20


def fp8_weights(config: ModelConfig, checkpoint: Checkpoint) -> frozenset[str]:
    """Names of the weights in FP8 blocks; UnsupportedModelError if config.json omits it."""
    names = checkpoint.fp8_weights
    if names and not config.stored_as_fp8:
        found = f"{min(names)} and {len(names) - 1} more, but no quantization_config in config.json"
        raise refuse("8-bit floats without blocks", found, config.architecture)
    return names


def why_not_multiplied(dtype: torch.dtype, device: Device) -> str:
    """Why FP8 weights are not multiplied as FP8; empty if they are."""
    if dtype is not torch.bfloat16:
        return "products of 8-bit floats give bfloat16 only; see --dtype"
    return device.supports("fp8_products").reason


def describe(checkpoint: Checkpoint, dtype: torch.dtype, device: Device) -> str:
    """The text of `rtp-llm explain` on FP8 weights; empty if there are none."""
    stored = sum(math.prod(checkpoint.tensors[name].shape) for name in checkpoint.fp8_weights)
    if not stored:
        return ""
    reason = why_not_multiplied(dtype, device)
    if not reason:
        return f", {stored / _MIB:.1f} MiB of FP8 blocks as they are"
    return f", {stored / _MIB:.1f} MiB of FP8 blocks {_grown(stored, dtype)}: {reason}"


def log_dequantized(model: nn.Module, dtype: torch.dtype, device: Device) -> None:
    """Log once how much memory FP8 weights take that are kept as floats."""
    targets = (local_target(target) for _, target in weight_targets(model))
    stored = sum(math.prod(t.shape) for t in targets if isinstance(t, DequantizingTarget))
    if not stored:
        return
    reason = why_not_multiplied(dtype, device)
    level = logging.WARNING if reason else logging.INFO
    reason = reason or "their layers compute with floats"
    _logger.log(
        level, "%.1f MiB of FP8 weights %s: %s", stored / _MIB, _grown(stored, dtype), reason
    )


def _grown(stored: int, dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return f"become {stored * dtype.itemsize / _MIB:.1f} MiB of {name} while loading"
