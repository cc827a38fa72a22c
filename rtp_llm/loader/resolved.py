# SPDX-License-Identifier: Apache-2.0
"""Resolves the "auto" settings of a model."""

from __future__ import annotations

from dataclasses import replace

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import Device
from rtp_llm.models.config import ModelConfig


def resolve(settings: ModelSettings, config: ModelConfig, device: Device) -> ModelSettings:
    """Return the model's settings, with "auto" replaced by values from the config and the device.

    attention_backend, moe_strategy and kv_cache_dtype stay "auto": layers choose for themselves.
    """
    auto = settings.dtype == "auto"
    return replace(
        settings.model_settings(),
        dtype=str(config.dtype).removeprefix("torch.") if auto else settings.dtype,
        max_seq_len=settings.max_seq_len or config.max_position_embeddings,
        seq_size_per_block=settings.seq_size_per_block or device.default_block_size(),
    )
