# SPDX-License-Identifier: Apache-2.0
"""Phi-3, 3.5 and 4: a Llama with fused projections and rope for long contexts."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.raw_config import RawConfig


class Phi3ForCausalLM(DecoderForCausalLM):
    """Q, K and V are one tensor in checkpoints, gate and up another.

    With longrope all sequences of an engine have the same list of factors, since keys in the cache
    have been rotated: the long one if the longest sequence exceeds the original length.
    """

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "bos_token_id": 1,
        "eos_token_id": 32000,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        window = raw.integer("sliding_window") if raw.get("sliding_window") else 0
        return Features(
            layer_windows=(window,) * raw.integer("num_hidden_layers"),
            fused_qkv=True,
            fused_gate_up=True,
        )
