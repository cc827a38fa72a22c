# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5 with mixtures of experts in all layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.hybrids.qwen3_5 import Qwen3_5ForCausalLM
from rtp_llm.models.moe import gated_shared_experts
from rtp_llm.models.raw_config import RawConfig


class Qwen3_5MoeForCausalLM(Qwen3_5ForCausalLM):
    """The weights of the selected experts are always normalised to sum 1."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **Qwen3_5ForCausalLM.CONFIG_DEFAULTS,
        "intermediate_size": 512,  # for dense layers, of which it has none
        "moe_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        moe = gated_shared_experts(raw, renormalize=True)
        return replace(super().features(raw), moe=moe)


class Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeForCausalLM):
    """The multimodal architecture, of which only the language model is served."""
