# SPDX-License-Identifier: Apache-2.0
"""GLM-5: DeepSeek-V3.2 with other sizes, and layers that share the selection of an earlier one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoders.deepseek_v32 import DeepseekV32ForCausalLM
from rtp_llm.models.mla_config import read_indexer
from rtp_llm.models.raw_config import RawConfig

_TYPES = ("full", "shared")


class GlmMoeDsaForCausalLM(DeepseekV32ForCausalLM):
    """The rotation of index queries and keys pairs neighbours, as that of MLA does.

    `indexer_types` says which layers have an indexer ("full") and which take the selection of the
    last one that has ("shared"); `index_topk_pattern`, or `index_topk_freq` with
    `index_skip_topk_offset`, say the same (https://arxiv.org/abs/2603.12201).
    """

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **DeepseekV32ForCausalLM.CONFIG_DEFAULTS,
        "index_n_heads": 32,
        "max_position_embeddings": 202752,
        "n_group": 1,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "rms_norm_eps": 1e-5,
        "topk_group": 1,
        "v_head_dim": 256,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        features = super().features(raw)
        assert features.mla is not None
        mla = replace(features.mla, indexer=read_indexer(raw, is_neox=False))
        return replace(features, mla=mla, shared_selections=_shared_selections(raw))


def _shared_selections(raw: RawConfig) -> tuple[bool, ...]:
    layers = raw.integer("num_hidden_layers")
    types, pattern = raw.get("indexer_types"), raw.get("index_topk_pattern")
    if types is None and pattern is not None:
        types = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    if types is None:
        every = raw.integer("index_topk_freq", 1)
        key = "index_skip_topk_offset"
        offset = 2 if raw.get(key) is None else raw.count(key)
        past = (max(layer - offset + 1, 0) for layer in range(layers))
        types = ["shared" if number % every else "full" for number in past]
    if len(types) != layers or types[0] != "full" or not set(types) <= set(_TYPES):
        expected = f"{layers} of {_TYPES[0]!r} and {_TYPES[1]!r}, the first {_TYPES[0]!r}"
        raise raw.error("indexer_types", types, expected)
    return tuple(each == "shared" for each in types)
