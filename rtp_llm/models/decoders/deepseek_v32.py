# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3.2: V3 whose attention sees the tokens that a lightning indexer selects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoders.deepseek_v3 import DeepseekV3ForCausalLM
from rtp_llm.models.mla_config import read_indexer
from rtp_llm.models.raw_config import RawConfig


class DeepseekV32ForCausalLM(DeepseekV3ForCausalLM):
    """Every layer has an indexer. Its rotation pairs halves, where that of MLA pairs neighbours."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **DeepseekV3ForCausalLM.CONFIG_DEFAULTS,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "index_topk": 2048,
        "max_position_embeddings": 163840,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        features = super().features(raw)
        assert features.mla is not None
        mla = replace(features.mla, indexer=read_indexer(raw, is_neox=True))
        shared = (False,) * raw.integer("num_hidden_layers")
        # The layer that predicts further tokens is not loaded.
        return replace(features, mla=mla, shared_selections=shared, mtp_layers=0)
