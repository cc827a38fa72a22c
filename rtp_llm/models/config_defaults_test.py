# SPDX-License-Identifier: Apache-2.0
"""What a key means that config.json leaves out: as transformers' config classes have it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import transformers

from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.registry import known_architectures

# Sizes that have to be there: a checkpoint of other ones than somebody's default is likelier.
NEEDED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
NAMES = [name for name in known_architectures("generate") if not name.startswith("NemotronH")]
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128}


def theirs_of(architecture: str, **changes: Any) -> Any:
    """The config class's own idea of `architecture`, in its own words."""
    family = architecture.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")
    family = "Mistral" if family == "Mistral3" else family  # its language model
    text = "Text" if hasattr(transformers, f"{family}TextConfig") else ""
    if family == "Glm4Moe":
        changes["num_attention_heads"] = 64  # 96 do not divide 4096
    config = getattr(transformers, f"{family}{text}Config")(**changes)
    config.allow_global_per_layer_attribute_access = True  # of Gemma 4
    return config


def ours_of(folder: Any, architecture: str, **changes: Any) -> Any:
    theirs = theirs_of(architecture)
    values = {key: getattr(theirs, key) for key in NEEDED if hasattr(theirs, key)}
    if getattr(theirs, "num_experts_per_tok", 0) is None:
        changes.setdefault("num_experts_per_tok", 6)  # DeepSeek-V2's has no default there either
    content = values | changes
    if architecture.endswith("ForConditionalGeneration"):
        content = {"text_config": content, "vision_config": {"depth": 2}, "image_token_id": 7}
    content = {"architectures": [architecture], **content}
    (folder / "config.json").write_text(json.dumps(content))
    return read_model_config(folder)


@pytest.mark.parametrize("architecture", NAMES)
def test_plain_keys(tmp_path, architecture):
    ours, theirs = ours_of(tmp_path, architecture), theirs_of(architecture)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    rope = theirs.rope_parameters
    if "full_attention" in rope:
        assert ours.local_rope.theta == rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    assert ours.rope.theta == rope["rope_theta"]
    stretched = architecture.startswith(("GptOss", "Ministral3"))
    style = "proportional" if "Gemma4" in architecture else "yarn" if stretched else "default"
    assert rope["rope_type"] == style
    assert ours.rope.style == ("none" if "MoeHybrid" in architecture else style)
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    act = getattr(theirs, "hidden_activation", None) or theirs.hidden_act
    assert ours.hidden_act == act.replace("pytorch_", "")
    assert ours.bos_token_id == theirs.bos_token_id
    eos = theirs.eos_token_id
    assert [*ours.eos_token_ids] == (eos if isinstance(eos, list) else [] if eos is None else [eos])
    assert ours.num_kv_heads == theirs.num_key_value_heads
    if ours.mla is None:
        head_dim = getattr(theirs, "head_dim", None)
        assert ours.head_dim == (head_dim or theirs.hidden_size // theirs.num_attention_heads)
    if style == "proportional":
        assert ours.rope.rotary_dim == theirs.per_layer_config["full_attention"].head_dim
        assert ours.rope.share == rope["partial_rotary_factor"]
    else:
        factor = rope.get("partial_rotary_factor", 1.0)
        assert ours.mla is not None or ours.rope.rotary_dim == int(ours.head_dim * factor)
    biases = getattr(theirs, "attention_bias", getattr(theirs, "qkv_bias", False))
    assert ours.qkv_bias == (biases or architecture == "Qwen2ForCausalLM")
    assert ours.mlp_bias == getattr(theirs, "mlp_bias", False)


@pytest.mark.parametrize("architecture", NAMES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_sliding_window": True},
        {"use_sliding_window": True, "max_window_layers": 0},
        {"use_sliding_window": True, "max_window_layers": 3, "sliding_window": 64},
    ],
)
def test_windows(tmp_path, architecture, changes):
    ours = ours_of(tmp_path, architecture, **changes)
    theirs = theirs_of(architecture, **changes)
    knows_windows = hasattr(theirs_of(architecture), "sliding_window")
    window = theirs.sliding_window or 0 if knows_windows else 0
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * theirs.num_hidden_layers
    expected = [window if kind == "sliding_attention" else 0 for kind in kinds]
    assert list(ours.layer_windows) == expected


@pytest.mark.parametrize(
    "architecture",
    [
        name
        for name in known_architectures("generate")
        if re.search("^(?!Glm|Er).*Moe|Mix|GptOss", name)
    ],
)
def test_experts(tmp_path, architecture):
    ours, theirs = ours_of(tmp_path, architecture), theirs_of(architecture)
    assert ours.moe_layers == (True,) * theirs.num_hidden_layers
    experts = getattr(theirs, "num_experts", None) or theirs.num_local_experts
    assert ours.moe.num_experts == experts
    assert ours.moe.top_k == theirs.num_experts_per_tok
    size = getattr(theirs, "moe_intermediate_size", None) or theirs.intermediate_size
    assert ours.moe.intermediate_size == size
    assert ours.moe.renormalize == getattr(theirs, "norm_topk_prob", True)
    shared = getattr(theirs, "shared_expert_intermediate_size", 0)
    assert ours.moe.shared_intermediate_size == getattr(theirs, "shared_intermediate_size", shared)


@pytest.mark.parametrize(
    "architecture",
    [name for name in known_architectures("generate") if "Next" in name or "3_5" in name],
)
@pytest.mark.parametrize("changes", [{}, {"full_attention_interval": 3, "num_hidden_layers": 7}])
def test_linear_attention(tmp_path, architecture, changes):
    ours, theirs = ours_of(tmp_path, architecture, **changes), theirs_of(architecture, **changes)
    kinds = [kind == "linear_attention" for kind in theirs.layer_types]
    assert list(ours.linear_layers) == kinds
    net = ours.delta_net
    assert net.num_key_heads == theirs.linear_num_key_heads
    assert net.num_heads == theirs.linear_num_value_heads
    assert net.key_size == theirs.linear_key_head_dim
    assert net.value_size == theirs.linear_value_head_dim
    assert net.kernel_size == theirs.linear_conv_kernel_dim


INDEXED = ["DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"index_topk_freq": 3, "index_skip_topk_offset": 4}, {"index_topk_pattern": "FFSSF"}],
)
def test_indexers(tmp_path, changes):
    changes = changes | {"num_hidden_layers": 5, "first_k_dense_replace": 2}
    for architecture in INDEXED:
        ours, theirs = (
            ours_of(tmp_path, architecture, **changes),
            theirs_of(architecture, **changes),
        )
        indexer = ours.mla.indexer
        assert indexer.config.num_heads == theirs.index_n_heads
        assert indexer.config.head_dim == theirs.index_head_dim
        assert indexer.config.top_k == theirs.index_topk
        assert indexer.query_rank == theirs.q_lora_rank
        types = getattr(theirs, "indexer_types", ["full"] * 5)
        assert list(ours.shared_selections) == [each == "shared" for each in types]


@pytest.mark.parametrize(
    "architecture", ["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", *INDEXED]
)
def test_mla_and_its_experts(tmp_path, architecture):
    ours, theirs = ours_of(tmp_path, architecture), theirs_of(architecture)
    mla = ours.mla
    assert mla.query_rank == theirs.q_lora_rank
    assert mla.rank == theirs.kv_lora_rank
    assert mla.rope_size == theirs.qk_rope_head_dim
    assert mla.nope_size == theirs.qk_nope_head_dim
    assert mla.value_size == theirs.v_head_dim
    dense = theirs.first_k_dense_replace
    assert ours.moe_layers == (False,) * dense + (True,) * (theirs.num_hidden_layers - dense)
    assert ours.moe.num_experts == theirs.n_routed_experts
    assert ours.moe.top_k == (theirs.num_experts_per_tok or 6)
    assert ours.moe.intermediate_size == theirs.moe_intermediate_size
    shared = theirs.n_shared_experts * theirs.moe_intermediate_size
    assert ours.moe.shared_intermediate_size == shared
    assert ours.moe.scaling == theirs.routed_scaling_factor
    assert ours.moe.renormalize == theirs.norm_topk_prob
    assert (ours.moe.num_groups, ours.moe.top_groups) == (
        theirs.n_group or 1,
        theirs.topk_group or 1,
    )


# What published folders say about themselves, apart from sizes.
PUBLISHED = {
    "Llama-3.1": {
        "rope_scaling": {"rope_type": "llama3", **LLAMA3},
        "rope_theta": 500000.0,
        "eos_token_id": [5, 6, 7],
        "pretraining_tp": 1,
        "head_dim": None,
    },
    "Qwen2.5": {
        "architectures": ["Qwen2ForCausalLM"],
        "max_window_layers": 28,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "rope_theta": 1000000.0,
        "attention_dropout": 0.0,
        "bos_token_id": 100,
    },
    "Qwen1.5-MoE": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "mlp_only_layers": [],
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 48,
        "decoder_sparse_step": 1,
    },
    "Mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        "rope_theta": 1e6,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "experts_per_token": 4,
        "initial_context_length": 4096,
        "num_experts_per_tok": 4,
        "num_local_experts": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
        },
        "rope_scaling": YARN | {"rope_type": "yarn", "beta_fast": 32.0, "truncate": False},
        "rope_theta": 150000,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
    },
    "gemma-2-2b-it": {
        "architectures": ["Gemma2ForCausalLM"],
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "eos_token_id": [1, 107],
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
    },
    "gemma-3-1b-it": {
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "eos_token_id": [1, 106],
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
    "DeepSeek-V2-Lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
        "q_lora_rank": None,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "rope_scaling": YARN | {"type": "yarn", "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "Qwen3-Next-MoE": {
        "architectures": ["Qwen3NextForCausalLM"],
        "partial_rotary_factor": 0.25,
        "rope_scaling": None,
        "rope_theta": 10000000,
        "full_attention_interval": 4,
        "linear_num_value_heads": 32,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "norm_topk_prob": True,
    },
    "Qwen3.5": {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
    },
    "Qwen3.6-MoE-FP8": {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "output_gate_type": "swish",
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": ["lm_head", "model.visual.merger.norm", "mtp.fc"],
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        "router_aux_loss_coef": 0.001,
    },
    "Qwen3.8-27B": {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "head_dim": 256,
        "linear_num_value_heads": 48,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "output_gate_type": "swish",
        "partial_rotary_factor": 0.25,
    },
    "DeepSeek-V3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "num_nextn_predict_layers": 1,
        "ep_size": 1,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        "rope_scaling": YARN
        | {"type": "yarn", "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_forms_are_read(tmp_path, name):
    changes = {"architectures": ["LlamaForCausalLM"], **PUBLISHED[name]}
    sizes = {"num_hidden_layers": 4, "max_position_embeddings": 512}
    config = ours_of(tmp_path, changes["architectures"][0], **{**changes, **sizes})
    assert config.num_layers == 4
    assert (config.moe is not None) == any(word in name for word in ("MoE", "Mix", "Deep", "oss"))


@pytest.mark.parametrize(
    ("name", "windows", "caps", "theta", "local_theta"),
    [
        ("gemma-2-2b-it", [4096, 0] * 4, (50.0, 30.0), 1e4, None),
        ("gemma-3-1b-it", [512] * 5 + [0] + [512] * 2, (0.0, 0.0), 1e6, 1e4),
    ],
)
def test_published_gemma(tmp_path, name, windows, caps, theta, local_theta):
    """What their keys mean, which transformers 5 names differently."""
    published = PUBLISHED[name]
    changes = {**published, "num_hidden_layers": 8}
    config = ours_of(tmp_path, published["architectures"][0], **changes)
    assert list(config.layer_windows) == windows
    assert (config.soft_cap, config.logit_cap) == caps
    assert config.rope.theta == theta
    assert (config.local_rope and config.local_rope.theta) == local_theta
    assert config.attention_scale == 256**-0.5
    assert config.eos_token_ids == tuple(published["eos_token_id"])
    assert config.tie_word_embeddings
