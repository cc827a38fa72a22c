# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Next: gated delta nets, full attention in every fourth layer, mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.hybrids.hybrid import HybridForCausalLM, read_delta_net
from rtp_llm.models.moe import gated_shared_experts, sparse_layers
from rtp_llm.models.raw_config import RawConfig


class Qwen3NextForCausalLM(HybridForCausalLM):
    """Linear attention projections are grouped by key head in the checkpoint."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **HybridForCausalLM.CONFIG_DEFAULTS,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 512,
        "norm_topk_prob": True,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        return replace(
            super().features(raw),
            delta_net=replace(read_delta_net(raw), interleaved=True),
            moe=gated_shared_experts(raw, renormalize=raw.flag("norm_topk_prob")),
            moe_layers=sparse_layers(raw),
        )
