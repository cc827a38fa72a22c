# SPDX-License-Identifier: Apache-2.0
"""Granite 4: layers of Mamba-2 and of attention, usually without rotation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.layers import MixerShape, MoeConfig
from rtp_llm.layers.moe.config import ExpertNames
from rtp_llm.models.config import Features, ModelConfig
from rtp_llm.models.decoders.granite import GraniteForCausalLM
from rtp_llm.models.hybrids.mamba2_config import MambaKeys, mamba_layers, read_mamba2
from rtp_llm.models.moe import num_experts
from rtp_llm.models.raw_config import RawConfig

# The MLP of every token has the names of a dense layer's; see rtp_llm/loader/granite_tensors.py.
_NAMES = ExpertNames(
    block="", gate="block_sparse_moe.router.layer", experts="block_sparse_moe.experts", shared="mlp"
)
_KEYS = MambaKeys(
    heads="mamba_n_heads",
    head_dim="mamba_d_head",
    groups="mamba_n_groups",
    state="mamba_d_state",
    kernel="mamba_d_conv",
    expand="mamba_expand",
    conv_bias="mamba_conv_bias",
    proj_bias="mamba_proj_bias",
    eps="rms_norm_eps",
)


class GraniteMoeHybridForCausalLM(GraniteForCausalLM):
    """Every layer has an MLP, or experts and a shared MLP.

    Float16 is refused: the residual, divided by m, would overflow earlier than theirs.
    """

    OVERFLOWS_FLOAT16: ClassVar[bool] = True
    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **GraniteForCausalLM.CONFIG_DEFAULTS,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": "auto",
        "mamba_d_state": 256,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 128,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
    }

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        config = super().read_config(raw)
        kind = raw.get("position_embedding_type")
        if kind not in (None, "nope", "rope"):
            raise raw.error("position_embedding_type", kind, "nope or rope")
        if kind == "rope":
            return config
        return replace(config, rope=replace(config.rope, style="none"))

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        experts = num_experts(raw) if raw.get("num_local_experts") != 0 else 0
        linear, width = mamba_layers(raw), raw.integer("shared_intermediate_size")
        return replace(
            super().features(raw),
            mlp_bias=False,
            linear_layers=linear,
            mamba2=read_mamba2(raw, _KEYS) if any(linear) else None,
            dense_size=width,
            moe=_experts(raw, experts, width) if experts else None,
        )

    @classmethod
    def mixers(cls, config: ModelConfig) -> tuple[MixerShape, ...]:
        return tuple(
            config.mamba2 if linear and config.mamba2 else mixer
            for linear, mixer in zip(config.linear_layers, super().mixers(config), strict=True)
        )


def _experts(raw: RawConfig, experts: int, shared: int) -> MoeConfig:
    return MoeConfig(
        hidden_size=raw.integer("hidden_size"),
        num_experts=experts,
        top_k=raw.integer("num_experts_per_tok"),
        intermediate_size=raw.integer("intermediate_size"),
        shared_intermediate_size=shared,
        names=_NAMES,
    )
