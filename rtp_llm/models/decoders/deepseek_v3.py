# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3 and R1: V2 with sigmoid scores of the experts, balanced by a bias."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.layers.moe import MoeConfig
from rtp_llm.models.config import Features
from rtp_llm.models.decoders.deepseek_v2 import DeepseekV2ForCausalLM, expect, expert_sizes
from rtp_llm.models.raw_config import RawConfig


class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
    """The bias affects the selection of groups and experts, but not their weights.

    The multi-token prediction layer after the last one is loaded only if it is used for drafts.
    """

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **DeepseekV2ForCausalLM.CONFIG_DEFAULTS,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 4096,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }

    def ignores(self, name: str) -> bool:
        layer = name.removeprefix("model.layers.").partition(".")[0]
        is_extra = layer.isdecimal() and int(layer) >= self.config.num_layers
        return is_extra or super().ignores(name)

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        key = "num_nextn_predict_layers"
        further = 0 if raw.get(key) is None else raw.count(key)
        return replace(super().features(raw), mtp_layers=further)

    @classmethod
    def experts(cls, raw: RawConfig) -> MoeConfig:
        expect(raw, "topk_method", "noaux_tc")
        expect(raw, "scoring_func", "sigmoid")
        return MoeConfig(
            **expert_sizes(raw),
            scoring="sigmoid",
            renormalize=raw.flag("norm_topk_prob"),
            correction_bias=True,
            num_groups=raw.integer("n_group"),
            top_groups=raw.integer("topk_group"),
        )
