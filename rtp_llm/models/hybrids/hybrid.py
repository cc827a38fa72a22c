# SPDX-License-Identifier: Apache-2.0
"""Common config.json parsing for hybrids of gated delta nets and full attention."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.layers import GatedDeltaNetShape
from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.raw_config import RawConfig

LINEAR = "linear_attention"
FULL = "full_attention"
_PIECE = 8  # elements of a head that kernels process at a time
_MAX_TAPS = 4  # the maximum that the convolution kernels support


class HybridForCausalLM(DecoderForCausalLM):
    """Linear attention layers interleaved with full attention, whose output is gated.

    The multi-token prediction layer (mtp) is loaded only if it is used for drafts.
    """

    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ("mtp.",)
    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 32768,
        "output_gate_type": "swish",
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        _check_gates(raw)
        bias = raw.flag("attention_bias")
        return Features(
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=True,
            norm_offset=1.0,
            output_gate=True,
            delta_net=read_delta_net(raw),
            linear_layers=linear_layers(raw),
            mtp_layers=mtp_layers(raw),
        )


def _check_gates(raw: RawConfig) -> None:
    """ModelConfigError for gates that transformers' Qwen3.5 has not, but other engines' may."""
    if not raw.flag("attn_output_gate"):
        raise raw.error("attn_output_gate", False, "true: the output of attention is gated")
    if raw.get("output_gate_type") not in (None, "swish", "silu"):
        expected = "swish, the gate of the norm after linear attention"
        raise raw.error("output_gate_type", raw.get("output_gate_type"), expected)


def mtp_layers(raw: RawConfig) -> int:
    """Number of multi-token prediction layers; Qwen3.5 and Qwen3-Next use different keys."""
    keys = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
    return next((raw.count(key) for key in keys if raw.get(key) is not None), 1)


def linear_layers(raw: RawConfig) -> tuple[bool, ...]:
    """Which layers have linear attention, from `layer_types`.

    By default all layers but every `full_attention_interval`th.
    """
    layers = raw.integer("num_hidden_layers")
    kinds = raw.get("layer_types")
    if kinds is None:
        interval = raw.integer("full_attention_interval")
        if interval > layers:
            expected = (
                f"at most {layers} (num_hidden_layers): one layer has full attention at least"
            )
            raise raw.error("full_attention_interval", interval, expected)
        return tuple((layer + 1) % interval != 0 for layer in range(layers))
    if len(kinds) != layers:
        expected = f"a list of {layers} entries (num_hidden_layers)"
        raise raw.error("layer_types", len(kinds), expected)
    if FULL not in kinds:
        raise raw.error("layer_types", LINEAR, f"{FULL} in one entry at least")
    for kind in kinds:
        if kind not in (LINEAR, FULL):
            raise raw.error("layer_types", kind, f"{LINEAR} or {FULL} in each entry")
    return tuple(kind == LINEAR for kind in kinds)


def read_delta_net(raw: RawConfig) -> GatedDeltaNetShape:
    """The sizes of the linear attention; ModelConfigError names a key that does not fit."""
    if raw.text("hidden_act") not in ("silu", "swish"):
        expected = "silu, which the convolution in front of linear attention computes"
        raise raw.error("hidden_act", raw.get("hidden_act"), expected)
    heads = raw.integer("linear_num_value_heads")
    key_heads = raw.integer("linear_num_key_heads")
    if heads % key_heads:
        expected = f"a multiple of linear_num_key_heads ({key_heads})"
        raise raw.error("linear_num_value_heads", heads, expected)
    taps = raw.integer("linear_conv_kernel_dim")
    if taps > _MAX_TAPS:
        expected = f"at most {_MAX_TAPS}, which the kernels of the convolution take"
        raise raw.error("linear_conv_kernel_dim", taps, expected)
    return GatedDeltaNetShape(
        hidden_size=raw.integer("hidden_size"),
        num_heads=heads,
        num_key_heads=key_heads,
        key_size=_head_size(raw, "linear_key_head_dim"),
        value_size=_head_size(raw, "linear_value_head_dim"),
        kernel_size=taps,
        norm_eps=raw.number("rms_norm_eps"),
    )


def _head_size(raw: RawConfig, key: str) -> int:
    size = raw.integer(key)
    if size % _PIECE:
        raise raw.error(key, size, f"a multiple of {_PIECE}, as the kernels take heads")
    return size
