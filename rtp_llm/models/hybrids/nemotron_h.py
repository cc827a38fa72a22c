# SPDX-License-Identifier: Apache-2.0
"""Nemotron-H: layers of one mixer each, Mamba-2, attention without rotation, or an MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.layers import Layer, MixerShape
from rtp_llm.layers.ungated_mlp import UngatedMLPShape
from rtp_llm.models.config import Features, ModelConfig
from rtp_llm.models.config_fields import MAX_LAYERS
from rtp_llm.models.decoder import Decoder, DecoderForCausalLM
from rtp_llm.models.hybrids.mamba2_config import MambaKeys, read_mamba2
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import refuse
from rtp_llm.models.single_mixer_layer import SingleMixerLayer

_MAMBA, _ATTENTION, _MLP, _EXPERTS = "linear_attention", "full_attention", "mlp", "moe"
_PATTERN = {"M": _MAMBA, "*": _ATTENTION, "-": _MLP, "E": _EXPERTS}
_OLDER = {"mamba": _MAMBA, "attention": _ATTENTION}
_KEYS = MambaKeys(
    heads="mamba_num_heads",
    head_dim="mamba_head_dim",
    groups="n_groups",
    state="ssm_state_size",
    kernel="conv_kernel",
    expand="",
    conv_bias="use_conv_bias",
    proj_bias="use_bias",
    eps="layer_norm_epsilon",
    activation="mamba_hidden_act",
)


class NemotronHDecoder(Decoder):
    """A Decoder whose layers have one mixer and one norm."""

    @classmethod
    def _layer_kind(cls, config: ModelConfig) -> Callable[..., Layer]:
        return SingleMixerLayer


class NemotronHForCausalLM(DecoderForCausalLM):
    """Float16 is refused: the squares in the MLP would overflow."""

    DECODER: ClassVar[type[Decoder]] = NemotronHDecoder
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ("mtp.",)
    TEXT_PREFIXES: ClassVar[tuple[str, ...]] = ("backbone.",)
    OVERFLOWS_FLOAT16: ClassVar[bool] = True
    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "bos_token_id": 1,
        "conv_kernel": 4,
        "eos_token_id": 2,
        "head_dim": 128,
        "hidden_act": "relu2",
        "layer_norm_epsilon": 1e-5,
        "mamba_head_dim": 64,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": 128,
        "max_position_embeddings": 4096,
        "mlp_hidden_act": "relu2",
        "n_groups": 8,
        "num_key_value_heads": 8,
        "ssm_state_size": 128,
        "use_conv_bias": True,
    }

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        kinds = _layer_kinds(raw)
        epsilon = raw.number("layer_norm_epsilon")
        derived = {
            "layer_types": kinds,
            "num_hidden_layers": len(kinds),
            "rms_norm_eps": epsilon,
        }
        config = super().read_config(replace(raw, values={**raw.values, **derived}))
        return replace(config, rope=replace(config.rope, style="none"))

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        kinds = raw.get("layer_types")
        if raw.text("mlp_hidden_act") != "relu2":
            raise raw.error("mlp_hidden_act", raw.get("mlp_hidden_act"), "relu2")
        if raw.flag("attention_bias"):
            raise raw.error("attention_bias", True, "false, since its attention has no biases")
        return Features(
            mlp_bias=raw.flag("mlp_bias"),
            linear_layers=tuple(kind == _MAMBA for kind in kinds),
            mlp_layers=frozenset(i for i, kind in enumerate(kinds) if kind == _MLP),
            mamba2=read_mamba2(raw, _KEYS) if _MAMBA in kinds else None,
        )

    @classmethod
    def mixers(cls, config: ModelConfig) -> tuple[MixerShape, ...]:
        mlp = UngatedMLPShape(config.hidden_size, config.intermediate_size, config.mlp_bias)
        mixers = list(super().mixers(config))
        for index, linear in enumerate(config.linear_layers):
            if linear and config.mamba2:
                mixers[index] = config.mamba2
            elif index in config.mlp_layers:
                mixers[index] = mlp
        return tuple(mixers)


def _layer_kinds(raw: RawConfig) -> list[str]:
    """The kind of each layer: as listed, else as the letters of `hybrid_override_pattern`."""
    key = next((k for k in ("layers_block_type", "layer_types") if raw.get(k) is not None), "")
    listed = raw.get(key) if key else raw.text(key := "hybrid_override_pattern")
    names = _OLDER if key != "hybrid_override_pattern" else _PATTERN
    kinds = [names.get(each, each) for each in listed]
    for kind in kinds:
        if kind not in _PATTERN.values():
            raise raw.error(key, kind, f"of {', '.join((*_PATTERN.values(), *_PATTERN))}")
    if len(kinds) > MAX_LAYERS:
        raise raw.error(key, len(kinds), f"a list of at most {MAX_LAYERS} layers")
    if _EXPERTS in kinds:
        found = f"config.json: {key} has layers of experts, which have no gate"
        raise refuse("mixture of experts", found, "NemotronHForCausalLM")
    if not {_MAMBA, _ATTENTION} & set(kinds):
        raise raw.error(key, listed, "such that some layer has attention or Mamba-2")
    count = raw.get("num_hidden_layers")
    if count not in (None, len(kinds)):
        raise raw.error(key, len(kinds), f"a list of {count} entries (num_hidden_layers)")
    return kinds
