# SPDX-License-Identifier: Apache-2.0
"""MiniMax-M2: norms over whole rows of Q and K, experts in every layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.layers.moe import ExpertNames, MoeConfig
from rtp_llm.models.config import Features, ModelConfig
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.decoders.deepseek_v2 import expect
from rtp_llm.models.moe import num_experts
from rtp_llm.models.raw_config import RawConfig

_NAMES = ExpertNames(
    block="block_sparse_moe",
    gate_proj="w1",
    up_proj="w3",
    down_proj="w2",
    choice_bias="e_score_correction_bias",
)


class MiniMaxM2ForCausalLM(DecoderForCausalLM):
    """Scores of experts are sigmoids, and the choice has a bias. `rotary_dim` channels rotate."""

    # The layers that predict further tokens are not used.
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ("model.mtp_modules.", "mtp_modules.")
    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "bos_token_id": 200034,
        "eos_token_id": 200020,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 196608,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000000.0,
    }

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        if (channels := raw.get("rotary_dim")) is not None:
            share = channels / raw.integer("head_dim")
            raw = replace(raw, values={"partial_rotary_factor": share, **raw.values})
        return super().read_config(raw)

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        expect(raw, "scoring_func", "sigmoid")
        expect(raw, "use_qk_norm", True)
        expect(raw, "qk_norm_type", "per_layer")
        expect(raw, "shared_intermediate_size", 0)
        moe = MoeConfig(
            hidden_size=raw.integer("hidden_size"),
            num_experts=num_experts(raw),
            top_k=raw.integer("num_experts_per_tok"),
            intermediate_size=raw.integer("intermediate_size"),
            scoring="sigmoid",
            correction_bias=True,
            group_best=1,
            names=_NAMES,
        )
        return Features(wide_qk_norm=True, moe=moe)
