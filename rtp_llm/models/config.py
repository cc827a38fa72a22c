# SPDX-License-Identifier: Apache-2.0
"""The config of a model: config.json as one typed, checked object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rtp_llm.config.tasks import Task
from rtp_llm.layers.activation import SWIGLU_OAI
from rtp_llm.layers.attention import AttentionShape
from rtp_llm.layers.linear_attention import GatedDeltaNetShape
from rtp_llm.layers.mamba2 import Mamba2Shape
from rtp_llm.layers.mla_attention import MlaShape
from rtp_llm.layers.moe.config import MoeConfig
from rtp_llm.layers.query_scaling import QueryScaling
from rtp_llm.layers.rotary import MropeConfig
from rtp_llm.layers.weights.stored_config import StoredModules, read_stored_modules
from rtp_llm.model_folder import read_json, token_ids
from rtp_llm.models.classifiers.classifier_config import ClassifierConfig
from rtp_llm.models.encoder_config import EncoderConfig
from rtp_llm.models.gemma4.config import Gemma4Config
from rtp_llm.models.norm_slots import PRE_NORMS, NormSlots
from rtp_llm.models.raw_config import ModelConfigError, RawConfig
from rtp_llm.models.refusals import UnsupportedModelError, architecture_of, rope_settings
from rtp_llm.models.rope_config import read_rope
from rtp_llm.ops.rope.rotary_table import RopeConfig

__all__ = [
    "Eagle3Config",
    "Features",
    "ModelConfig",
    "ModelConfigError",
    "UnsupportedModelError",
    "make_config",
]

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}


# The features of an architecture that a config takes over unchanged.
_TAKEN = (
    "qkv_bias",
    "output_bias",
    "mlp_bias",
    "qk_norm",
    "mla",
    "shared_selections",
    "norm_offset",
    "output_gate",
    "sinks",
    "norms",
    "embedding_scale",
    "attention_scale",
    "logit_scale",
    "soft_cap",
    "logit_cap",
    "local_rope",
    "no_rope_layers",
    "mlp_layers",
    "rope_in_pairs",
    "wide_qk_norm",
    "query_scaling",
    "fused_qkv",
    "fused_gate_up",
    "delta_net",
    "mamba2",
    "mtp_layers",
    "mrope",
    "takes_embeddings",
    "gemma4",
)


@dataclass(frozen=True)
class Features:
    """The features in which architectures of the decoder family differ.

    `dense_size`: the intermediate size of dense layers, 0: it has the usual key.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    layer_windows: tuple[int, ...] | None = None
    moe: MoeConfig | None = None
    moe_layers: tuple[bool, ...] = ()
    mla: MlaShape | None = None
    shared_selections: tuple[bool, ...] = ()
    norm_offset: float = 0.0
    output_gate: bool = False
    sinks: bool = False
    norms: NormSlots = PRE_NORMS
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    logit_scale: float = 1.0
    soft_cap: float = 0.0
    logit_cap: float = 0.0
    local_rope: RopeConfig | None = None
    no_rope_layers: frozenset[int] = frozenset()
    mlp_layers: frozenset[int] = frozenset()
    rope_in_pairs: bool = False
    wide_qk_norm: bool = False
    query_scaling: QueryScaling | None = None
    fused_qkv: bool = False
    fused_gate_up: bool = False
    delta_net: GatedDeltaNetShape | None = None
    mamba2: Mamba2Shape | None = None
    linear_layers: tuple[bool, ...] = ()
    mtp_layers: int = 0
    mrope: MropeConfig | None = None
    takes_embeddings: bool = False
    gemma4: Gemma4Config | None = None
    dense_size: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """The config of a decoder. `layer_windows`: each layer's attention window in tokens, 0 = full.

    `moe_layers`: whether each layer's feed-forward part is the mixture of experts `moe`, which is
    None if no layer has one.
    `hidden_act` is "silu", "gelu", "gelu_tanh" or, without a gate, "relu2"; `dtype` is the one the
    checkpoint names; `stored`: how it stores the weights of modules that are not floats. With
    `mla` the cache holds latents instead of keys and values; `shared_selections`: whether each
    layer takes the selection of an earlier layer's indexer. `norm_offset` is added to the weights
    of norms; with `output_gate` a gate multiplies the attention result; `sinks`: heads have them,
    see AttentionShape. `norms`: where layers have them. Embeddings are multiplied by
    `embedding_scale`, logits by `logit_scale`. `attention_scale` and `soft_cap`: see
    AttentionConfig; logits are capped likewise by `logit_cap`, 0: not.
    `local_rope`: the rotary embedding of layers with a window, None: that of the others.
    `no_rope_layers`: the indices of layers that do not rotate; `mlp_layers`: those of layers that
    are an MLP only. `rope_in_pairs`, `wide_qk_norm` and
    `query_scaling`: see AttentionShape. `fused_qkv`, `fused_gate_up`: the checkpoint has these
    projections in one tensor, part after part. `linear_layers`: whether each layer uses the linear
    attention `delta_net`, or `mamba2`, instead of softmax attention. `mtp_layers` is the number of
    multi-token prediction layers that follow the last layer in the checkpoint, and `draft_layers`
    how many of them are used. Alternatively drafts come from the head `eagle3` or from a separate
    model, `draft_model`. `mrope`: positions have three axes; `takes_embeddings`: requests may bring
    embeddings for placeholder tokens. `tasks`: what it can be served for, by default for the first.
    `encoder`: it reads prompts both ways and generates nothing; then `layer_windows` count tokens
    on either side. `gemma4`: what layers of Gemma 4 have besides; `head_dim` and `num_kv_heads` are
    those of layers with a window then.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    layer_windows: tuple[int, ...]
    hidden_act: str
    dtype: torch.dtype
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    moe: MoeConfig | None = None
    moe_layers: tuple[bool, ...] = ()
    stored: StoredModules | None = None
    mla: MlaShape | None = None
    shared_selections: tuple[bool, ...] = ()
    norm_offset: float = 0.0
    output_gate: bool = False
    sinks: bool = False
    norms: NormSlots = PRE_NORMS
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    logit_scale: float = 1.0
    soft_cap: float = 0.0
    logit_cap: float = 0.0
    local_rope: RopeConfig | None = None
    no_rope_layers: frozenset[int] = frozenset()
    mlp_layers: frozenset[int] = frozenset()
    rope_in_pairs: bool = False
    wide_qk_norm: bool = False
    query_scaling: QueryScaling | None = None
    fused_qkv: bool = False
    fused_gate_up: bool = False
    delta_net: GatedDeltaNetShape | None = None
    mamba2: Mamba2Shape | None = None
    linear_layers: tuple[bool, ...] = ()
    mtp_layers: int = 0
    draft_layers: int = 0
    eagle3: Eagle3Config | None = None
    draft_model: ModelConfig | None = None
    tasks: tuple[Task, ...] = ("generate",)
    classifier: ClassifierConfig | None = None
    mrope: MropeConfig | None = None
    takes_embeddings: bool = False
    encoder: EncoderConfig | None = None
    gemma4: Gemma4Config | None = None

    @property
    def stored_in_fp8_blocks(self) -> bool:
        """Whether the checkpoint has weights in FP8 blocks."""
        formats = self.stored.formats if self.stored else ()
        return any(each.name == "fp8_block" for each in formats)

    @property
    def has_drafts(self) -> bool:
        """Whether the model has a draft head or draft model."""
        return bool(self.draft_layers) or self.eagle3 is not None

    @property
    def draft_vocab_size(self) -> int:
        """The vocabulary size of the draft head or draft model."""
        return self.vocab_size if self.eagle3 is None else self.eagle3.vocab_size

    @property
    def attention_bias(self) -> bool:
        return self.qkv_bias

    @property
    def context_limit(self) -> int:
        """The maximum context length, which scaled RoPE extends beyond the trained length."""
        if self.encoder is not None:
            return self.encoder.longest
        if self.rope.style in ("linear", "dynamic", "yarn"):
            reach = int(self.rope.factor * self.rope.max_position)
            return max(reach, self.max_position_embeddings)
        return self.max_position_embeddings


@dataclass(frozen=True)
class Eagle3Config:
    """An EAGLE-3 head: `own` is its config.json; it reads the inputs of the model layers
    `captures`, each `capture_size` wide. `vocab_size` is that of its own vocabulary.
    `own_embedding`: its folder has an embedding.
    """

    folder: Path
    own: ModelConfig
    captures: tuple[int, ...]
    capture_size: int
    vocab_size: int
    norm_before_residual: bool
    own_embedding: bool = False

    @property
    def shape(self) -> AttentionShape:
        """The shape of its attention, which reads the concatenated embedding and state."""
        own = self.own
        return AttentionShape(
            hidden_size=own.hidden_size,
            num_heads=own.num_heads,
            num_kv_heads=own.num_kv_heads,
            head_dim=own.head_dim,
            qkv_bias=own.qkv_bias,
            input_size=2 * own.hidden_size,
        )


def make_config(raw: RawConfig, features: Features) -> ModelConfig:
    """Build the typed config from a config.json and the architecture's features."""
    heads = raw.integer("num_attention_heads")
    hidden = raw.integer("hidden_size")
    mla = features.mla
    head_dim = mla.query_size if mla else _head_dim(raw, hidden, heads)
    layers = raw.integer("num_hidden_layers")
    act = _ACTIVATIONS[raw.text("hidden_act")]
    moe_layers = features.moe_layers or (features.moe is not None,) * layers
    config = ModelConfig(
        architecture=architecture_of(raw.values),
        vocab_size=raw.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=features.dense_size or raw.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=raw.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        rms_norm_eps=raw.number("rms_norm_eps"),
        rope=read_rope(raw, mla.rope_size if mla else _rotary_size(raw, head_dim)),
        max_position_embeddings=raw.integer("max_position_embeddings"),
        tie_word_embeddings=raw.flag("tie_word_embeddings"),
        layer_windows=features.layer_windows or (0,) * layers,
        hidden_act=act,
        dtype=number_type(raw),
        eos_token_ids=_eos_token_ids(raw),
        bos_token_id=next(iter(raw.token_ids("bos_token_id")), None),
        # If no layer uses the experts, there are none to load, compute or share.
        moe=_experts(features.moe, act) if features.moe and any(moe_layers) else None,
        moe_layers=moe_layers,
        stored=read_stored_modules(raw.values),
        linear_layers=features.linear_layers or (False,) * layers,
        **{name: getattr(features, name) for name in _TAKEN},
    )
    _check(raw, config)
    return config


def _experts(moe: MoeConfig, hidden_act: str) -> MoeConfig:
    """The experts with the model's activation, unless they have one that it has no name for."""
    return moe if moe.activation == SWIGLU_OAI else replace(moe, activation=hidden_act)


def _head_dim(raw: RawConfig, hidden: int, heads: int) -> int:
    if raw.get("head_dim") is None and hidden % heads:
        raise raw.error("hidden_size", hidden, f"a multiple of num_attention_heads ({heads})")
    head_dim = raw.integer("head_dim", hidden // heads)
    if head_dim % 2:
        raise raw.error("head_dim", head_dim, "even, since halves of a head rotate together")
    return head_dim


def _rotary_size(raw: RawConfig, head_dim: int) -> int:
    """The number of leading channels of a head that are rotated."""
    key = "partial_rotary_factor"
    factor = rope_settings(raw.values).get(key)
    factor = raw.get(key) if factor is None else factor
    size = int(head_dim * (1.0 if factor is None else float(factor)))
    if size < 2 or size % 2 or size > head_dim:
        raise raw.error(key, factor, f"such that an even number of {head_dim} channels rotate")
    return size


def number_type(raw: RawConfig) -> torch.dtype:
    """The number type that config.json names."""
    name = (raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _eos_token_ids(raw: RawConfig) -> tuple[int, ...]:
    """The union of the ids in generation_config.json and config.json."""
    key, size = "eos_token_id", raw.integer("vocab_size")
    file = raw.folder / "generation_config.json"
    generation, own = token_ids(file, key, read_json(file).get(key)), raw.token_ids(key)
    for where, ids in ((file, generation), (raw.file, own)):
        if wrong := [each for each in ids if each >= size]:
            raise ModelConfigError(
                f"{where}: {key} {wrong[0]} is outside the vocabulary of vocab_size={size} tokens"
            )
    return tuple(dict.fromkeys(generation + own))


def _check(raw: RawConfig, config: ModelConfig) -> None:
    """Raise ModelConfigError for contradictory keys that would cause odd shapes later."""
    if config.num_heads % config.num_kv_heads:
        expected = f"a divisor of num_attention_heads ({config.num_heads})"
        raise raw.error("num_key_value_heads", config.num_kv_heads, expected)
    if len(config.layer_windows) != config.num_layers:
        expected = f"a list of {config.num_layers} entries (num_hidden_layers)"
        raise raw.error("layer_types", len(config.layer_windows), expected)
