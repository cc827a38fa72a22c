# SPDX-License-Identifier: Apache-2.0
"""Ministral 3: a Mistral whose queries grow with their position."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.layers.query_scaling import QueryScaling
from rtp_llm.models.config import Features, ModelConfig
from rtp_llm.models.decoders.mistral import MistralForCausalLM
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import rope_settings

_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


class Ministral3ForCausalLM(MistralForCausalLM):
    """The growth is a rope setting, `llama_4_scaling_beta`."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **MistralForCausalLM.CONFIG_DEFAULTS,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
    }

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        if not rope_settings(raw.values):
            raw = replace(raw, values={**raw.values, "rope_parameters": _ROPE})
        return super().read_config(raw)

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        return replace(super().features(raw), query_scaling=query_scaling(raw))


def query_scaling(raw: RawConfig) -> QueryScaling | None:
    """The growth of queries that the rope settings ask for; None: none."""
    settings = rope_settings(raw.values)
    beta = settings.get("llama_4_scaling_beta")
    if not beta:
        return None
    key = "original_max_position_embeddings"
    length = settings.get(key)
    if not isinstance(length, int) or length < 1:
        raise raw.error(f"the rope setting {key}", length, "a positive integer")
    return QueryScaling(float(beta), length)
