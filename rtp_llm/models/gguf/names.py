# SPDX-License-Identifier: Apache-2.0
"""The names of a GGUF file's tensors as checkpoints of Hugging Face have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_DECODER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_MLP = {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_DENSE = {**_ATTENTION, **_MLP, "ffn_norm": "post_attention_layernorm"}
# Experts are stacked: the number of one takes the place of "*". Rows of a "+" b are those of both.
_OF_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
    "ffn_gate_up_exps": "mlp.experts.*.gate_proj+up_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_EXPERTS = {**_DENSE, **_OF_EXPERTS}
_MIXTRAL = {
    **_ATTENTION,
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.*.w1",
    "ffn_up_exps": "block_sparse_moe.experts.*.w3",
    "ffn_down_exps": "block_sparse_moe.experts.*.w2",
}
_GPT_OSS = {
    **_ATTENTION,
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
}
_DEEPSEEK = {
    **_EXPERTS,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_HYBRID = {
    **_ATTENTION,
    **_MLP,
    **_OF_EXPERTS,
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt": "linear_attn.dt_bias",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
# Norms before and after attention and feed-forward.
_SANDWICH = {
    **_ATTENTION,
    **_MLP,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA4 = {
    **_SANDWICH,
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_exps": "experts.*.gate_proj",
    "ffn_up_exps": "experts.*.up_proj",
    "ffn_gate_up_exps": "experts.*.gate_proj+up_proj",
    "ffn_down_exps": "experts.*.down_proj",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "layer_output_scale": "layer_scalar",
}
_GEMMA4_DECODER = {
    **_DECODER,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_BERT = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_BERT_EMBEDDINGS = {
    "token_embd": "model.embeddings.word_embeddings",
    "position_embd": "model.embeddings.position_embeddings",
    "token_types": "model.embeddings.token_type_embeddings",
    "token_embd_norm": "model.embeddings.LayerNorm",
}
_BERT_HEAD = {"cls": "model.pooler.dense", "cls.output": "classifier"}
# Of the layer that predicts further tokens, besides those of an ordinary layer. Copies of the
# model's own embedding and head are left out.
_NEXTN = {
    "nextn.eh_proj": "mtp.fc",
    "nextn.enorm": "mtp.pre_fc_norm_embedding",
    "nextn.hnorm": "mtp.pre_fc_norm_hidden",
    "nextn.shared_head_norm": "mtp.norm",
}
_NEXTN_LAYER = "mtp.layers.0"
# Tensors that are no module's.
_ALONE = (
    "self_attn.sinks",
    "linear_attn.A_log",
    "linear_attn.dt_bias",
    "mlp.gate.e_score_correction_bias",
    "layer_scalar",
)
_OF_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.(nextn\.\w+|\w+\.scale|\w+)")


@dataclass(frozen=True)
class TensorNames:
    """Name in a file -> module in a checkpoint: `in_layers` of the tensors of a layer, whose
    modules are in `layers`.N, and `outside` of the others. `has_nextn`: the layer after the last
    one is read, too."""

    in_layers: Mapping[str, str]
    outside: Mapping[str, str] = field(default_factory=lambda: _DECODER)
    layers: str = "model.layers"
    has_nextn: bool = False


DENSE = TensorNames(_DENSE)
EXPERTS = TensorNames(_EXPERTS)
MIXTRAL = TensorNames(_MIXTRAL)
GPT_OSS = TensorNames(_GPT_OSS)
DEEPSEEK = TensorNames(_DEEPSEEK, has_nextn=True)
HYBRID = TensorNames(_HYBRID, has_nextn=True)
SANDWICH = TensorNames(_SANDWICH)
GEMMA4 = TensorNames(_GEMMA4, _GEMMA4_DECODER)
BERT = TensorNames(_BERT, _BERT_EMBEDDINGS, "model.encoder.layer")
BERT_WITH_HEAD = replace(BERT, outside={**_BERT_EMBEDDINGS, **_BERT_HEAD})


@dataclass(frozen=True)
class HfName:
    """A module in a checkpoint of Hugging Face, and which of its tensors is meant ("weight").

    The module has "*" for the number of an expert, if the tensor holds all of them. `layer` is the
    layer's index, -1 outside of them.
    """

    module: str
    suffix: str
    layer: int = -1

    @property
    def is_stacked(self) -> bool:
        """Whether the tensor holds the weights of all experts."""
        return "*" in self.module

    def of_expert(self, expert: int) -> list[HfName]:
        """The names of the tensors that hold the rows of one expert, in their order."""
        path, _, parts = self.module.replace("*", str(expert)).rpartition(".")
        return [replace(self, module=f"{path}.{part}") for part in parts.split("+")]


def is_beyond(name: str, layers: int) -> bool:
    """Whether the tensor belongs to a layer after so many, which predict further tokens."""
    match = _OF_LAYER.match(name)
    return match is not None and int(match[1]) >= layers


def hf_name(name: str, names: TensorNames, layers: int) -> HfName | None:
    """The name of the tensor `name` of a model of so many layers; None: it is not known, or not
    read. Of the layer after them it begins with "mtp."."""
    stem, _, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias"):
        stem, suffix = name, ""
    if stem in names.outside:
        return HfName(names.outside[stem], suffix)
    match = _OF_LAYER.fullmatch(stem)
    if match is None:
        return None
    number, part = int(match[1]), match[2]
    path, known = f"{names.layers}.{number}", names.in_layers
    if number >= layers:
        if number > layers or not names.has_nextn:
            return None
        if part in _NEXTN:
            return HfName(_NEXTN[part], suffix, number)
        path = _NEXTN_LAYER
    if part not in known:
        return None
    suffix = "" if known[part] in _ALONE else suffix
    return HfName(f"{path}.{known[part]}", suffix, number)
