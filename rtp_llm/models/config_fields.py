# SPDX-License-Identifier: Apache-2.0
"""The keys of config.json that are read: their types and ranges, checked before anything else.

Ranges are wide: they exclude values that no model has, so that a broken file is reported before it
leads to an allocation. The architecture decides whether a key is required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rtp_llm.model_folder import finite

Kind = Literal[
    "integer",
    "number",
    "flag",
    "text",
    "flag or text",
    "count or text",
    "texts",
    "integers",
    "list",
    "object",
]

MAX_LAYERS = 2**12
MAX_EXPERTS = 2**14
LONGEST_CONTEXT = 2**24


@dataclass(frozen=True)
class Field:
    """The values a key may have besides null; limits apply to numbers and lengths of lists.

    `above`: a number must be greater than it (None: from 0).
    """

    kind: Kind
    minimum: int = 0
    maximum: float = 0
    above: float | None = None

    def problem(self, value: Any) -> str:
        """The requirement that `value` violates; empty if it is valid."""
        if not _TYPES[self.kind](value):
            return self._type()
        if self.kind == "integer" and not self.minimum <= value <= self.maximum:
            if value < self.minimum:
                return self._type()
            return f"{self._type()} up to {self.maximum}"
        if self.kind == "number" and not self._fits(value):
            least = "from 0" if self.above is None else f"greater than {self.above}"
            return f"a number {least} and at most {self.maximum:.0f}"
        if self.kind in ("texts", "integers", "list") and len(value) > self.maximum:
            return f"{self._type()} of at most {self.maximum} entries"
        return ""

    def _fits(self, value: Any) -> bool:
        number = finite(value)
        if number is None or number > self.maximum:
            return False
        return number >= 0 if self.above is None else number > self.above

    def _type(self) -> str:
        if self.kind == "integer":
            return "a positive integer" if self.minimum == 1 else f"an integer from {self.minimum}"
        return _WORDS[self.kind]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "integer": _is_integer,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "flag": lambda value: isinstance(value, bool),
    "text": lambda value: isinstance(value, str),
    "count or text": lambda value: isinstance(value, str) or (_is_integer(value) and value >= 0),
    "flag or text": lambda value: isinstance(value, bool | str),
    "texts": lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value),
    "integers": lambda value: isinstance(value, list) and all(map(_is_integer, value)),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_WORDS = {
    "number": "a number",
    "flag": "true or false",
    "text": "a text",
    "count or text": "an integer from 0 or a text",
    "flag or text": "true, false or a text",
    "texts": "a list of texts",
    "integers": "a list of integers",
    "list": "a list",
    "object": "an object",
}


def _size(maximum: int) -> Field:
    return Field("integer", 1, maximum)


def _count(maximum: int) -> Field:
    return Field("integer", 0, maximum)


def _positive(maximum: float) -> Field:
    return Field("number", above=0, maximum=maximum)


_FLAG, _TEXT, _OBJECT = Field("flag"), Field("text"), Field("object")

FIELDS: dict[str, Field] = {
    "architectures": Field("texts", maximum=16),
    "activation": _TEXT,
    "add_cross_attention": _FLAG,
    "attention_bias": _FLAG,
    "attention_k_eq_v": _FLAG,
    "attention_multiplier": _positive(1e6),
    "attention_out_bias": _FLAG,
    "attn_logit_softcapping": Field("number", maximum=1e6),
    "classifier_activation": _TEXT,
    "classifier_bias": _FLAG,
    "classifier_pooling": _TEXT,
    "conv_kernel": _size(2**8),
    "decoder_sparse_step": _size(MAX_LAYERS),
    "dim": _size(2**20),
    "dtype": _TEXT,
    "embedding_multiplier": _positive(1e6),
    "enable_moe_block": _FLAG,
    "final_logit_softcapping": Field("number", maximum=1e6),
    "first_k_dense_replace": _count(MAX_LAYERS),
    "full_attention_interval": _size(MAX_LAYERS),
    "global_attn_every_n_layers": _size(MAX_LAYERS),
    "global_head_dim": _size(2**14),
    "global_rope_theta": Field("number", above=1, maximum=1e15),
    "head_dim": _size(2**14),
    "hidden_act": _TEXT,
    "hidden_activation": _TEXT,
    "hidden_dim": _size(2**24),
    "hidden_size": _size(2**20),
    "hidden_size_per_layer_input": _count(2**16),
    "hybrid_override_pattern": _TEXT,
    "id2label": _OBJECT,
    "index_head_dim": _size(2**14),
    "index_n_heads": _size(2**14),
    "index_skip_topk_offset": _count(MAX_LAYERS),
    "index_topk": _size(LONGEST_CONTEXT),
    "index_topk_freq": _size(MAX_LAYERS),
    "index_topk_pattern": _TEXT,
    "indexer_types": Field("texts", maximum=MAX_LAYERS),
    "intermediate_size": _size(2**24),
    "is_causal": _FLAG,
    "is_decoder": _FLAG,
    "kv_lora_rank": _size(2**16),
    "layer_norm_eps": _positive(1),
    "layer_norm_epsilon": _positive(1),
    "layer_norm_type": _TEXT,
    "layer_types": Field("texts", maximum=MAX_LAYERS),
    "layers_block_type": Field("texts", maximum=MAX_LAYERS),
    "linear_conv_kernel_dim": _size(2**8),
    "linear_key_head_dim": _size(2**14),
    "linear_num_key_heads": _size(2**14),
    "linear_num_value_heads": _size(2**14),
    "linear_value_head_dim": _size(2**14),
    "local_attention": Field("integer", 2, LONGEST_CONTEXT),
    "local_rope_theta": Field("number", above=1, maximum=1e15),
    "logits_scaling": _positive(1e6),
    "logn_attention_scale": _FLAG,
    "mamba_conv_bias": _FLAG,
    "mamba_d_conv": _size(2**8),
    "mamba_d_state": _size(2**14),
    "mamba_expand": _size(2**8),
    "mamba_head_dim": _size(2**14),
    "mamba_hidden_act": _TEXT,
    "mamba_n_groups": _size(2**14),
    "mamba_n_heads": _size(2**14),
    "mamba_num_heads": _size(2**14),
    "mamba_proj_bias": _FLAG,
    # A prompt of one token, and an answer of one.
    "max_position_embeddings": Field("integer", 2, LONGEST_CONTEXT),
    "max_window_layers": _count(MAX_LAYERS),
    "mlp_bias": _FLAG,
    "mlp_hidden_act": _TEXT,
    "mlp_layer_types": Field("texts", maximum=MAX_LAYERS),
    "mlp_only_layers": Field("integers", maximum=MAX_LAYERS),
    "model_type": _TEXT,
    "moe_intermediate_size": _size(2**24),
    "moe_k": _size(MAX_EXPERTS),
    "moe_layer_end_index": Field("integer", -1, MAX_LAYERS),
    "moe_layer_freq": _size(MAX_LAYERS),
    "moe_layer_interval": _size(MAX_LAYERS),
    "moe_layer_start_index": _count(MAX_LAYERS),
    "moe_num_experts": _count(MAX_EXPERTS),
    "moe_num_shared_experts": _count(2**10),
    "n_group": _count(MAX_EXPERTS),
    "n_groups": _size(2**14),
    "n_heads": _size(2**14),
    "n_layers": _size(MAX_LAYERS),
    "n_routed_experts": _count(MAX_EXPERTS),
    "n_shared_experts": _count(2**10),
    "no_rope_layer_interval": _size(MAX_LAYERS),
    "no_rope_layers": Field("integers", maximum=MAX_LAYERS),
    "norm_bias": _FLAG,
    "norm_eps": _positive(1),
    "norm_topk_prob": _FLAG,
    "num_attention_heads": _size(2**14),
    "num_experts": _count(MAX_EXPERTS),
    "num_experts_per_tok": _count(MAX_EXPERTS),
    "num_global_key_value_heads": _size(2**14),
    "num_hidden_layers": _size(MAX_LAYERS),
    "num_key_value_heads": _size(2**14),
    "num_kv_shared_layers": _count(MAX_LAYERS),
    "num_labels": _size(2**20),
    "num_local_experts": _count(MAX_EXPERTS),
    "original_max_position_embeddings": _size(LONGEST_CONTEXT),
    "pack_qkv": _FLAG,
    "partial_rotary_factor": _positive(1),
    "per_layer_config": _OBJECT,
    "position_embedding_type": _TEXT,
    "problem_type": _TEXT,
    "q_lora_rank": _size(2**16),
    "query_pre_attn_scalar": _positive(2**20),
    "qk_nope_head_dim": _size(2**14),
    "qk_rope_head_dim": _size(2**14),
    "qkv_bias": _FLAG,
    "compression_config": _OBJECT,
    "quantization_config": _OBJECT,
    "relative_attention_num_buckets": _size(2**10),
    "residual_multiplier": _positive(1e6),
    "rms_norm_eps": _positive(1),
    "rope_interleave": _FLAG,
    "rope_parameters": _OBJECT,
    "rope_scaling": _OBJECT,
    "rope_local_base_freq": Field("number", above=1, maximum=1e15),
    # A base of one or less turns all pairs of channels alike.
    "rope_theta": Field("number", above=1, maximum=1e15),
    "rotary_dim": _size(2**14),
    "routed_scaling_factor": _positive(1e6),
    "sbert_ce_default_activation_function": _TEXT,
    "scoring_func": _TEXT,
    "sentence_transformers": _OBJECT,
    "shared_expert_intermediate_size": _size(2**24),
    "shared_intermediate_size": _size(2**24),
    "sliding_window": _count(LONGEST_CONTEXT),
    "sliding_window_pattern": Field("count or text"),
    "ssm_state_size": _size(2**14),
    "swiglu_alpha": _positive(1e6),
    "swiglu_limit": _positive(1e6),
    "tie_word_embeddings": _FLAG,
    "time_step_limit": Field("list", maximum=2),
    "time_step_min": Field("number", maximum=1e6),
    "top_k_experts": _count(MAX_EXPERTS),
    "topk_group": _count(MAX_EXPERTS),
    "topk_method": _TEXT,
    "torch_dtype": _TEXT,
    "type_vocab_size": _count(2**16),
    "use_bias": _FLAG,
    "use_bidirectional_attention": Field("flag or text"),
    "use_conv_bias": _FLAG,
    "use_double_wide_mlp": _FLAG,
    "use_qk_norm": _FLAG,
    "use_sliding_window": _FLAG,
    "v_head_dim": _size(2**14),
    "vocab_size": _size(2**24),
    "vocab_size_per_layer_input": _count(2**24),
}

# The keys of rope_scaling and rope_parameters.
ROPE_FIELDS: dict[str, Field] = {
    "attention_factor": _positive(1e6),
    "beta_fast": _positive(1e6),
    "beta_slow": _positive(1e6),
    "factor": _positive(1e6),
    "high_freq_factor": _positive(1e6),
    "llama_4_scaling_beta": Field("number", maximum=1e6),
    "low_freq_factor": _positive(1e6),
    # Zero stands for "not given".
    "mscale": Field("number", maximum=1e6),
    "mscale_all_dim": Field("number", maximum=1e6),
    "original_max_position_embeddings": _size(LONGEST_CONTEXT),
    "partial_rotary_factor": FIELDS["partial_rotary_factor"],
    "rope_theta": FIELDS["rope_theta"],
    "rope_type": _TEXT,
    "truncate": _FLAG,
    "type": _TEXT,
}


def problems(values: Mapping[str, Any], fields: Mapping[str, Field]) -> Iterator[tuple[str, str]]:
    """(key, requirement) for every key of `fields` that has an invalid value in `values`."""
    for key, field in fields.items():
        value = values.get(key)
        if value is not None and (problem := field.problem(value)):
            yield key, problem
