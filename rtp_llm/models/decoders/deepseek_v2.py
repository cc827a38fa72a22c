# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2 and V2-Lite: MLA, and routed and shared experts after the first dense layers."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.layers.moe import MoeConfig
from rtp_llm.layers.moe.config import ExpertNames
from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.mla_config import read_mla
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import architecture_of


class DeepseekV2ForCausalLM(DecoderForCausalLM):
    """Softmax over all experts; the top k come from any group, or from the best groups only."""

    # GGUF files give the layer that predicts further tokens this name.
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ("mtp.",)
    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "first_k_dense_replace": 0,
        "hidden_act": "silu",
        "kv_lora_rank": 512,
        "max_position_embeddings": 2048,
        "moe_intermediate_size": 1407,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-6,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        "v_head_dim": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        bias = raw.flag("attention_bias")
        sparse = sparse_layers(raw)
        return Features(
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=raw.flag("mlp_bias"),
            mla=read_mla(raw),
            moe=cls.experts(raw) if any(sparse) else None,
            moe_layers=sparse,
        )

    @classmethod
    def experts(cls, raw: RawConfig) -> MoeConfig:
        """Read the number of experts and how they are selected from config.json."""
        expect(raw, "topk_method", "greedy", "group_limited_greedy")
        expect(raw, "scoring_func", "softmax")
        expect(raw, "norm_topk_prob", False)
        grouped = raw.get("topk_method") == "group_limited_greedy"
        return MoeConfig(
            **expert_sizes(raw),
            # Its weights are scaled and never normalised.
            renormalize=False,
            num_groups=raw.integer("n_group") if grouped else 1,
            top_groups=raw.integer("topk_group") if grouped else 1,
            group_best=1,
        )


def expect(raw: RawConfig, key: str, *known: object) -> None:
    """Raise ModelConfigError if `key` is set to a value other than those `known`."""
    value = raw.values.get(key)
    if value is not None and value not in known:
        expected = " or ".join(map(repr, known))
        raise raw.error(
            key, value, f"{expected}: {architecture_of(raw.values)} selects no other way"
        )


def sparse_layers(raw: RawConfig) -> tuple[bool, ...]:
    """Which layers are mixtures: each `moe_layer_freq`th from `first_k_dense_replace` on."""
    layers = range(raw.integer("num_hidden_layers"))
    if not raw.get("n_routed_experts"):
        return (False,) * len(layers)
    first = raw.get("first_k_dense_replace") or 0
    step = raw.integer("moe_layer_freq", 1)
    return tuple(layer >= first and layer % step == 0 for layer in layers)


def expert_sizes(raw: RawConfig) -> dict[str, Any]:
    """Read the expert sizes whose keys V2 and V3 share."""
    size = raw.integer("moe_intermediate_size")
    shared = raw.integer("n_shared_experts") if raw.get("n_shared_experts") else 0
    return {
        "hidden_size": raw.integer("hidden_size"),
        "num_experts": raw.integer("n_routed_experts"),
        "top_k": raw.integer("num_experts_per_tok"),
        "intermediate_size": size,
        "scaling": raw.number("routed_scaling_factor"),
        "shared_intermediate_size": shared * size,
        "names": ExpertNames(shared="shared_experts"),
    }
