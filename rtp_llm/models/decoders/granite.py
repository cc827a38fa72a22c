# SPDX-License-Identifier: Apache-2.0
"""Granite 3, dense and with mixtures of experts: a Llama with four scalars."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.layers.moe import ExpertNames, MoeConfig
from rtp_llm.models.causal_lm import ModelOptions
from rtp_llm.models.config import Features, ModelConfig
from rtp_llm.models.decoder import Decoder, DecoderForCausalLM
from rtp_llm.models.moe import num_experts
from rtp_llm.models.raw_config import RawConfig

_DEFAULTS: dict[str, Any] = {
    "attention_multiplier": 1.0,
    "bos_token_id": 1,
    "embedding_multiplier": 1.0,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "logits_scaling": 1.0,
    "max_position_embeddings": 2048,
    "residual_multiplier": 1.0,
    "rms_norm_eps": 1e-6,
}
_NAMES = ExpertNames(block="block_sparse_moe", gate="router.layer")


class GraniteDecoder(Decoder):
    """A Decoder that multiplies embeddings without rounding the factor, as transformers does."""

    def __init__(self, config: ModelConfig, options: ModelOptions, *others: Any) -> None:
        super().__init__(config, options, *others)
        self._scale = config.embedding_scale


class GraniteForCausalLM(DecoderForCausalLM):
    """`attention_multiplier` is the scale of scores, and logits are divided by `logits_scaling`.

    What layers add is multiplied by `residual_multiplier` m there. Here the residual is that one
    divided by m: norms of it are the same with the epsilon divided by m^2.
    """

    # The residual is larger than there by 1 / m.
    OVERFLOWS_FLOAT16: ClassVar[bool] = True
    DECODER: ClassVar[type[Decoder]] = GraniteDecoder
    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = _DEFAULTS

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        config = super().read_config(raw)
        share = raw.number("residual_multiplier")
        return replace(config, rms_norm_eps=config.rms_norm_eps / share**2)

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        bias = raw.flag("attention_bias")
        return Features(
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=raw.flag("mlp_bias"),
            embedding_scale=raw.number("embedding_multiplier") / raw.number("residual_multiplier"),
            attention_scale=raw.number("attention_multiplier"),
            logit_scale=1 / raw.number("logits_scaling"),
        )


class GraniteMoeForCausalLM(GraniteForCausalLM):
    """Every layer is a mixture; the softmax is that of the chosen logits, as of all, renormalised.

    Checkpoints stack all experts in one tensor.
    """

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **_DEFAULTS,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        moe = MoeConfig(
            hidden_size=raw.integer("hidden_size"),
            num_experts=num_experts(raw),
            top_k=raw.integer("num_experts_per_tok"),
            intermediate_size=raw.integer("intermediate_size"),
            names=_NAMES,
        )
        return replace(super().features(raw), moe=moe)
