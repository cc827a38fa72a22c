# SPDX-License-Identifier: Apache-2.0
"""GTE (`NewModel`): BERT that rotates queries and keys, with gated feed-forward layers."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.model_folder import finite, shown
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.encoder_config import EncoderConfig
from rtp_llm.models.encoders.bert import BertModel
from rtp_llm.models.encoders.post_norm import PostNormNames
from rtp_llm.models.encoders.read_config import encoder_config, head_dim
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import refuse, rope_settings, rope_style
from rtp_llm.ops.rope.rotary_table import RopeConfig


class NewModel(BertModel):
    """The names of Alibaba-NLP's own code, which published folders have."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "layer_norm_type": "layer_norm",
        "max_position_embeddings": 2048,
        "position_embedding_type": "rope",
        "rope_theta": 10000.0,
        "type_vocab_size": 1,
    }
    TEXT_PREFIXES = ("new.",)
    IGNORED_PREFIXES = ("model.pooler.", "lm_head.")
    QKV = ("attention.qkv_proj",)
    NAMES = PostNormNames(
        attention_output="attention.o_proj",
        attention_norm="attn_ln",
        up="mlp.up_gate_proj",
        down="mlp.down_proj",
        norm="mlp_ln",
        gated=True,
    )

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        for key, known in (("position_embedding_type", "rope"), ("layer_norm_type", "layer_norm")):
            if raw.text(key) != known:
                raise raw.error(key, raw.text(key), f'"{known}"')
        if raw.flag("logn_attention_scale"):
            raise raw.error("logn_attention_scale", True, "false")
        if raw.get("pack_qkv") is False:
            raise raw.error("pack_qkv", False, "true")
        encoder = EncoderConfig(
            longest=raw.integer("max_position_embeddings"),
            scale=head_dim(raw) ** -0.5,
            type_rows=raw.count("type_vocab_size"),
        )
        eps = raw.number("layer_norm_eps")
        return encoder_config(raw, encoder, norm_eps=eps, rope=_rope(raw), mlp_bias=False)


class GteModel(NewModel):
    """The same as transformers saves it."""

    TEXT_PREFIXES = ("gte.",)


def _rope(raw: RawConfig) -> RopeConfig:
    settings, style, size = rope_settings(raw.values), rope_style(raw.values), head_dim(raw)
    theta = finite(settings.get("rope_theta")) or raw.number("rope_theta")
    if style == "default":
        return RopeConfig(style=style, rotary_dim=size, theta=theta)
    factor = finite(settings.get("factor"))
    if style != "ntk" or settings.get("mixed_b") is not None or factor is None or factor < 1:
        raise refuse("other rope type", f"config.json: rope_scaling {shown(settings)}", "NewModel")
    length = raw.integer("max_position_embeddings")
    # The base grows by the factor, and all frequencies shrink by that power of it.
    return RopeConfig("linear", size, theta * factor, factor ** (2 / size), length)
