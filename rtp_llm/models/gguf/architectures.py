# SPDX-License-Identifier: Apache-2.0
"""The table of GGUF architectures: class, names of tensors, and what differs from config.json.

Constants are those of llama.cpp for what files leave out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rtp_llm.models.config import ModelConfig
from rtp_llm.models.config_fields import MAX_LAYERS
from rtp_llm.models.gguf.gemma4 import gemma4_values
from rtp_llm.models.gguf.keys import GgufKeys
from rtp_llm.models.gguf.names import (
    BERT,
    BERT_WITH_HEAD,
    DEEPSEEK,
    DENSE,
    EXPERTS,
    GEMMA4,
    GPT_OSS,
    HYBRID,
    MIXTRAL,
    SANDWICH,
    TensorNames,
)
from rtp_llm.models.refusals import refuse

Values = dict[str, Any]
_SIGMOID = 2
_MOST_LABELS = 2**16
_NEAR, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class GgufArchitecture:
    """One row. `name` is that of the class in config.json, `tensors` has the names of tensors,
    `values` makes keys of config.json besides those that all models have.

    `paired_rows`: rows of queries and keys alternate between the halves of a head.
    `norms_plus_one`: 1 is added to the weights of norms. `delta_net`: it has such layers, whose
    decays are stored as negative numbers; with `tiled_values` value heads are in an order of their
    own. `differing_layers`: sizes may differ between layers. `adapt` changes the config for what
    config.json could not say.
    """

    name: str
    tensors: TensorNames
    values: Callable[[GgufKeys], Values]
    paired_rows: bool = False
    norms_plus_one: bool = False
    delta_net: bool = False
    tiled_values: bool = False
    differing_layers: bool = False
    adapt: Callable[[ModelConfig], ModelConfig] = lambda config: config


def find_architecture(keys: GgufKeys) -> GgufArchitecture | None:
    """The row of a file's architecture; None: it is not known."""
    row = _ROWS.get(keys.metadata.architecture)
    if row is None:
        return None
    if row.name == "LlamaForCausalLM" and keys.integer("expert_count"):
        return _MIXTRAL
    if row.tensors is BERT and keys.metadata.pooling == "rank":
        has_both = keys.shape("cls.weight") and keys.shape("cls.output.weight")
        return _BERT_CLASSIFIER if has_both else row
    if row.name == "DeepseekV3ForCausalLM" and not _has_sigmoid(keys):
        row = replace(row, name="DeepseekV2ForCausalLM")
    if keys.shape("blk.0.attn_k_b.weight") is not None:
        return replace(row, adapt=_split_keys_and_values)
    separate = keys.shape("blk.0.ssm_ba.weight") and keys.shape("blk.0.attn_gate.weight")
    return replace(row, adapt=_separate_z) if separate else row


def known_gguf_architectures() -> tuple[str, ...]:
    """All names that files may have."""
    return tuple(_ROWS)


def _llama(keys: GgufKeys) -> Values:
    return {
        "attention_bias": keys.shape("blk.0.attn_q.bias") is not None,
        "mlp_bias": keys.shape("blk.0.ffn_up.bias") is not None,
    }


def _mixtral(keys: GgufKeys) -> Values:
    return {**_experts(keys), "sliding_window": None}


def _experts(keys: GgufKeys) -> Values:
    return {
        "num_experts": keys.needed("expert_count"),
        "num_experts_per_tok": keys.needed("expert_used_count"),
    }


def _qwen(keys: GgufKeys) -> Values:
    return {"use_sliding_window": False}


def _qwen3(keys: GgufKeys) -> Values:
    return {**_qwen(keys), "attention_bias": keys.shape("blk.0.attn_q.bias") is not None}


def _qwen2moe(keys: GgufKeys) -> Values:
    shared = keys.integer("expert_shared_feed_forward_length")
    return {
        **_qwen(keys),
        **_experts(keys),
        "moe_intermediate_size": _expert_size(keys),
        "shared_expert_intermediate_size": shared or keys.size(0, ["blk.0.ffn_up_shexp.weight"]),
        "norm_topk_prob": False,
    }


def _qwen3moe(keys: GgufKeys) -> Values:
    return {
        **_qwen3(keys),
        **_experts(keys),
        "moe_intermediate_size": _expert_size(keys),
        "norm_topk_prob": True,
    }


def _expert_size(keys: GgufKeys) -> int | None:
    """Of old files that leave the key out, the rows of an expert's product."""
    given = keys.integer("expert_feed_forward_length")
    return given or keys.size(1, ["blk.0.ffn_up_exps.weight"])


def _gemma2(keys: GgufKeys) -> Values:
    return {
        "attn_logit_softcapping": keys.number("attn_logit_softcapping") or 50.0,
        "final_logit_softcapping": keys.number("final_logit_softcapping") or 30.0,
        "layer_types": _layer_types(keys, 2),
        "query_pre_attn_scalar": _query_scale(keys, 46),
        "sliding_window": keys.integer("attention.sliding_window") or 4096,
    }


def _gemma3(keys: GgufKeys) -> Values:
    theta = keys.number("rope.freq_base") or 1e6
    full: Values = {"rope_type": "default", "rope_theta": theta}
    if keys.text("rope.scaling.type") == "linear":
        full |= {"rope_type": "linear", "factor": keys.number("rope.scaling.factor") or 1.0}
    near = keys.number("rope.freq_base_swa") or 1e4
    return {
        "final_logit_softcapping": keys.number("final_logit_softcapping") or None,
        "layer_types": _layer_types(keys, 6),
        "query_pre_attn_scalar": _query_scale(keys, 62),
        "rope_parameters": {
            _FULL: full,
            _NEAR: {"rope_type": "default", "rope_theta": near},
        },
        "rope_scaling": None,
        "sliding_window": keys.needed("attention.sliding_window"),
    }


def _gemma4(keys: GgufKeys) -> Values:
    return gemma4_values(keys, num_layers(keys))


def _gemma_embedding(keys: GgufKeys) -> Values:
    """EmbeddingGemma; the window counts both sides, as in config.json."""
    return {**_gemma3(keys), "is_causal": None, "use_bidirectional_attention": True}


def _gpt_oss(keys: GgufKeys) -> Values:
    return {
        **_experts(keys),
        "intermediate_size": _expert_size(keys),
        "rope_scaling": None,
        "rope_parameters": _yarn(keys),
        "sliding_window": keys.integer("attention.sliding_window") or 128,
    }


def _yarn(keys: GgufKeys) -> Values:
    """gpt-oss does not round the range of the channels that are stretched."""
    return {
        "rope_type": "yarn",
        "rope_theta": keys.number("rope.freq_base") or 150000.0,
        "factor": keys.number("rope.scaling.factor") or 32.0,
        "original_max_position_embeddings": (
            keys.integer("rope.scaling.original_context_length") or 4096
        ),
        "truncate": False,
    }


def _separate_gates(config: ModelConfig) -> ModelConfig:
    """Gate and up of an expert are tensors of their own."""
    assert config.moe is not None
    names = replace(config.moe.names, gate_up_proj="")
    return replace(config, moe=replace(config.moe, names=names))


def _deepseek2(keys: GgufKeys) -> Values:
    """Where kv_b is in two parts, lengths are those of the cache, and `_mla` has those of heads."""
    rope = keys.needed("rope.dimension_count")
    key = keys.integer("attention.key_length_mla") or keys.needed("attention.key_length")
    value = keys.integer("attention.value_length_mla") or keys.needed("attention.value_length")
    groups, heads = keys.integer("expert_group_count") or 1, keys.needed("attention.head_count")
    values: Values = {
        "first_k_dense_replace": keys.integer("leading_dense_block_count") or 0,
        "head_dim": rope,
        "kv_lora_rank": keys.needed("attention.kv_lora_rank"),
        "moe_intermediate_size": keys.needed("expert_feed_forward_length"),
        "n_group": groups,
        "n_routed_experts": keys.needed("expert_count"),
        "n_shared_experts": keys.integer("expert_shared_count") or 0,
        "norm_topk_prob": keys.flag("expert_weights_norm") or False,
        "num_experts_per_tok": keys.needed("expert_used_count"),
        "num_key_value_heads": heads,
        "num_nextn_predict_layers": _nextn_layers(keys),
        "partial_rotary_factor": None,
        "q_lora_rank": keys.integer("attention.q_lora_rank"),
        "qk_nope_head_dim": key - rope,
        "qk_rope_head_dim": rope,
        "routed_scaling_factor": keys.number("expert_weights_scale") or 1.0,
        "topk_group": keys.integer("expert_group_used_count") or 1,
        "v_head_dim": value,
    }
    if _has_sigmoid(keys):
        values |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    else:
        values["topk_method"] = "group_limited_greedy" if groups > 1 else "greedy"
    if keys.text("rope.scaling.type") == "yarn":
        values["rope_scaling"] = _yarn_of_deepseek(keys)
    return values


def _has_sigmoid(keys: GgufKeys) -> bool:
    """Whether scores of experts are sigmoids, as in V3, and not a softmax."""
    return keys.integer("expert_gating_func") == _SIGMOID


def _yarn_of_deepseek(keys: GgufKeys) -> Values:
    weight = 10 * (keys.number("rope.scaling.yarn_log_multiplier") or 0.0)
    return {
        "rope_type": "yarn",
        "factor": keys.number("rope.scaling.factor") or 1.0,
        "original_max_position_embeddings": keys.needed("rope.scaling.original_context_length"),
        "mscale": weight,
        "mscale_all_dim": weight,
    }


def _separate_z(config: ModelConfig) -> ModelConfig:
    net = config.delta_net
    return replace(config, delta_net=net and replace(net, separate_z=True))


def _tiled_output(config: ModelConfig) -> ModelConfig:
    net = config.delta_net
    return replace(config, delta_net=net and replace(net, tiled_output=True))


def _split_keys_and_values(config: ModelConfig) -> ModelConfig:
    return replace(config, mla=config.mla and replace(config.mla, split_kv=True))


def _qwen35(keys: GgufKeys) -> Values:
    heads = keys.needed("ssm.time_step_rank")
    return {
        "full_attention_interval": keys.integer("full_attention_interval") or 4,
        "linear_conv_kernel_dim": keys.needed("ssm.conv_kernel"),
        "linear_key_head_dim": keys.needed("ssm.state_size"),
        "linear_num_key_heads": keys.needed("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": keys.needed("ssm.inner_size") // max(1, heads),
        "mtp_num_hidden_layers": _nextn_layers(keys),
    }


def _qwen35moe(keys: GgufKeys) -> Values:
    return {**_qwen2moe(keys), **_qwen35(keys), "norm_topk_prob": True}


def _bert(keys: GgufKeys) -> Values:
    """Also RoBERTa, whose position embeddings have lost their first two rows."""
    if keys.flag("attention.causal"):
        found = f"{keys.metadata.of_model('attention.causal')} is true in {keys.metadata.file}"
        raise refuse("encoder that is used as a decoder", found, "BertModel")
    return {
        "hidden_act": "gelu",
        "is_causal": None,
        "layer_norm_eps": keys.number("attention.layer_norm_epsilon") or 1e-12,
        "max_position_embeddings": keys.size(0, ["position_embd.weight"]),
        "type_vocab_size": keys.size(0, ["token_types.weight"]) or 0,
    }


def _bert_classifier(keys: GgufKeys) -> Values:
    """Labels are those of the file, if there are as many as the head has rows."""
    rows = keys.size(0, ["cls.output.weight"]) or 1
    if rows > _MOST_LABELS:
        raise keys.error("classifier.output_labels", f"would be {rows}")
    named = keys.metadata.texts(keys.metadata.of_model("classifier.output_labels")) or ()
    labels = [*named] if len(named) == rows else [f"LABEL_{row}" for row in range(rows)]
    return {**_bert(keys), "id2label": {str(row): label for row, label in enumerate(labels)}}


def _query_scale(keys: GgufKeys, largest: int) -> float:
    """Queries are divided by its root: the width of a head, or of the model with so many layers the
    width for each head."""
    hidden, heads = keys.needed("embedding_length"), max(1, keys.needed("attention.head_count"))
    width = keys.integer("attention.key_length") or hidden // heads
    return hidden / heads if keys.needed("block_count") == largest else width


def _layer_types(keys: GgufKeys, every: int) -> list[str]:
    """Which layers have a window: as listed, or all but each one of `every`."""
    listed = keys.listed("attention.sliding_window_pattern")
    if isinstance(listed, list):
        return [_NEAR if has_window else _FULL for has_window in listed]
    every = max(1, listed or every)
    return [_FULL if index % every == every - 1 else _NEAR for index in range(num_layers(keys))]


def num_layers(keys: GgufKeys) -> int:
    """The layers of the model itself, without those that predict further tokens.

    Raises ModelConfigError for a number that no model has.
    """
    count = keys.needed("block_count") - (keys.integer("nextn_predict_layers") or 0)
    if not 1 <= count <= MAX_LAYERS:
        raise keys.error("block_count", f"leaves {count} layers; 1 to {MAX_LAYERS} are expected")
    return count


def _nextn_layers(keys: GgufKeys) -> int:
    """The layers that predict further tokens; 0 if the file was written without them."""
    count = keys.integer("nextn_predict_layers") or 0
    return count if keys.shape(f"blk.{num_layers(keys)}.nextn.eh_proj.weight") else 0


_MIXTRAL = GgufArchitecture("MixtralForCausalLM", MIXTRAL, _mixtral, paired_rows=True)
_BERT_CLASSIFIER = GgufArchitecture(
    "BertForSequenceClassification", BERT_WITH_HEAD, _bert_classifier
)
_QWEN35 = GgufArchitecture(
    "Qwen3_5MoeForCausalLM",
    HYBRID,
    _qwen35moe,
    norms_plus_one=True,
    delta_net=True,
    tiled_values=True,
    adapt=_tiled_output,
)
_ROWS = {
    "llama": GgufArchitecture("LlamaForCausalLM", DENSE, _llama, paired_rows=True),
    "qwen2": GgufArchitecture("Qwen2ForCausalLM", DENSE, _qwen),
    "qwen2moe": GgufArchitecture("Qwen2MoeForCausalLM", EXPERTS, _qwen2moe),
    "qwen3": GgufArchitecture("Qwen3ForCausalLM", DENSE, _qwen3),
    "qwen3moe": GgufArchitecture("Qwen3MoeForCausalLM", EXPERTS, _qwen3moe),
    "qwen3next": GgufArchitecture(
        "Qwen3NextForCausalLM", HYBRID, _qwen35moe, norms_plus_one=True, delta_net=True
    ),
    "qwen35": replace(_QWEN35, name="Qwen3_5ForCausalLM", values=_qwen35),
    "qwen35moe": _QWEN35,
    "deepseek2": GgufArchitecture("DeepseekV3ForCausalLM", DEEPSEEK, _deepseek2),
    "gpt-oss": GgufArchitecture("GptOssForCausalLM", GPT_OSS, _gpt_oss, adapt=_separate_gates),
    "bert": GgufArchitecture("BertModel", BERT, _bert),
    "gemma2": GgufArchitecture("Gemma2ForCausalLM", SANDWICH, _gemma2, norms_plus_one=True),
    "gemma3": GgufArchitecture("Gemma3ForCausalLM", SANDWICH, _gemma3, norms_plus_one=True),
    "gemma4": GgufArchitecture("Gemma4ForCausalLM", GEMMA4, _gemma4, differing_layers=True),
    "gemma-embedding": GgufArchitecture(
        "Gemma3TextModel", SANDWICH, _gemma_embedding, norms_plus_one=True
    ),
}
