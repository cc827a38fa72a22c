# SPDX-License-Identifier: Apache-2.0
"""What config.json and sentence_bert_config.json say of encoders, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.models.config import ModelConfig, ModelConfigError, UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.registry import known_architectures
from rtp_llm.ops.rope.rotary_table import rope_table

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
DISTIL = {"vocab_size": 100, "dim": 64, "n_layers": 4, "n_heads": 4, "hidden_dim": 64}


def read(folder: Path, architecture: str, *, longest: Any = None, **keys: Any) -> ModelConfig:
    sizes = DISTIL if architecture.startswith("Distil") else SIZES
    content = {"architectures": [architecture], **sizes, **keys}
    (folder / "config.json").write_text(json.dumps(content))
    if longest is not None:
        text = json.dumps({"max_seq_length": longest, "do_lower_case": False})
        (folder / "sentence_bert_config.json").write_text(text)
    return read_model_config(folder)


@pytest.mark.parametrize(
    ("architecture", "rows", "tokens"),
    [
        ("BertModel", 512, 512),
        ("BertForMaskedLM", 512, 512),
        ("DistilBertModel", 512, 512),
        ("XLMRobertaModel", 514, 512),
        ("RobertaForMaskedLM", 514, 512),
        ("MPNetForMaskedLM", 514, 512),
        ("NewModel", 8192, 8192),
        ("ModernBertModel", 8192, 8192),
    ],
)
def test_the_longest_prompt_follows_from_the_rows(
    tmp_path: Path, architecture: str, rows: int, tokens: int
) -> None:
    config = read(tmp_path, architecture, max_position_embeddings=rows)
    assert (config.max_position_embeddings, config.context_limit) == (tokens, tokens)
    shorter = read(tmp_path, architecture, max_position_embeddings=rows, longest=256)
    assert (shorter.max_position_embeddings, shorter.context_limit) == (256, tokens)
    longer = read(tmp_path, architecture, max_position_embeddings=rows, longest=9000)
    assert longer.max_position_embeddings == tokens


def test_encoders_embed_or_classify(tmp_path: Path) -> None:
    for name in known_architectures("classify"):
        if "Bert" in name or "MPNet" in name or name.startswith(("New", "Gte")):
            assert read(tmp_path, name).tasks == ("classify", "reward")
            assert read(tmp_path, name, num_labels=1).tasks == ("score", "classify", "reward")
            named = name.replace("Sequence", "Token")
            assert read(tmp_path, named).tasks == ("token_classify", "reward")
    for name in set(known_architectures("embed")) - set(known_architectures("generate")):
        keys = {"num_key_value_heads": 2, "use_bidirectional_attention": True}
        assert read(tmp_path, name, **keys).tasks == ("embed",)


def test_decoders_that_read_both_ways(tmp_path: Path) -> None:
    keys = {"num_key_value_heads": 2}
    config = read(tmp_path, "Qwen2ForCausalLM", is_causal=False, **keys)
    assert (config.architecture, config.tasks) == ("Qwen2BidirectionalModel", ("embed",))
    assert read(tmp_path, "Qwen2ForCausalLM", is_causal=True, **keys).encoder is None
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM: is_causal false is not"):
        read(tmp_path, "LlamaForCausalLM", is_causal=False)


def test_windows_and_bases_of_embedding_gemma(tmp_path: Path) -> None:
    """512 stands for 256 tokens on either side."""
    keys: dict[str, Any] = {"sliding_window": 512, "num_key_value_heads": 1, "head_dim": 16}
    keys |= {"sliding_window_pattern": 2, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    config = read(tmp_path, "Gemma3TextModel", use_bidirectional_attention=True, **keys)
    assert config.encoder is not None
    assert config.local_rope is not None
    assert config.layer_windows == (256, 0, 256, 0)
    assert (config.rope.theta, config.rope.factor) == (1e6, 8.0)
    assert (config.local_rope.theta, config.local_rope.factor) == (1e4, 1.0)
    assert config.encoder.scale == 256**-0.5


def test_windows_and_bases_of_modernbert(tmp_path: Path) -> None:
    config = read(tmp_path, "ModernBertModel")
    assert config.encoder is not None
    assert config.local_rope is not None
    assert config.layer_windows == (0, 64, 64, 0)
    assert (config.rope.theta, config.local_rope.theta) == (160000, 10000)
    rope = {"full_attention": {"rope_theta": 5e4}, "sliding_attention": {"rope_theta": 3e3}}
    kinds = ["sliding_attention", "full_attention"] * 2
    config = read(tmp_path, "ModernBertModel", rope_parameters=rope, layer_types=kinds)
    assert config.encoder is not None
    assert config.local_rope is not None
    assert config.layer_windows == (64, 0, 64, 0)
    assert (config.rope.theta, config.local_rope.theta) == (5e4, 3e3)


def test_ntk_scaling_of_gte(tmp_path: Path) -> None:
    """The base grows by the factor, and frequencies shrink by its power of 2 / dim."""
    scaling = {"type": "ntk", "factor": 8.0}
    keys = {"rope_theta": 20000, "rope_scaling": scaling, "max_position_embeddings": 64}
    config = read(tmp_path, "NewModel", **keys)
    size = config.head_dim
    channels = torch.arange(0, size, 2, dtype=torch.float64)
    frequencies = (20000 * 8.0) ** (-channels / size) / 8.0 ** (2 / size)
    angles = torch.arange(64, dtype=torch.float64)[:, None] * frequencies
    expected = torch.cat([angles.cos(), angles.sin()], 1).float()
    torch.testing.assert_close(rope_table(config.rope, 64, "cpu"), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("BertModel", {"hidden_act": "relu"}, 'hidden_act must be "gelu"|hidden_act .*relu'),
        ("BertModel", {"hidden_act": "gelu_new"}, 'hidden_act must be "gelu", the exact one'),
        ("BertModel", {"hidden_size": 30}, r"a multiple of num_attention_heads \(4\)"),
        ("BertModel", {"num_attention_heads": 8}, "head size of an encoder .*have 8 channels"),
        ("DistilBertModel", {"n_heads": 16}, "head size of an encoder .*have 4 channels"),
        ("BertModel", {"longest": 1}, "max_seq_length must be an integer from 2"),
        ("BertModel", {"position_embedding_type": "relative_key"}, 'must be "absolute"'),
        ("MPNetModel", {"relative_attention_num_buckets": 64}, "must be 32; not 64"),
        ("NewModel", {"rope_scaling": {"type": "ntk", "factor": 2, "mixed_b": 1}}, "rope type"),
        ("NewModel", {"layer_norm_type": "rms_norm"}, 'layer_norm_type must be "layer_norm"'),
        ("NewModel", {"pack_qkv": False}, "pack_qkv must be true"),
        ("ModernBertModel", {"layer_types": ["full_attention"]}, "list of 4 entries"),
        ("Gemma3TextModel", {}, "use_bidirectional_attention must be true; it is missing"),
        (
            "Qwen2ForCausalLM",
            {"is_causal": False, "use_sliding_window": True, "num_key_value_heads": 2},
            "use_sliding_window must be false in a model that reads both ways",
        ),
    ],
)
def test_other_arithmetic_is_refused(
    tmp_path: Path, architecture: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises((ModelConfigError, UnsupportedModelError), match=message):
        read(tmp_path, architecture, **keys)


@pytest.mark.parametrize("key", ["is_decoder", "add_cross_attention"])
def test_decoders_made_of_encoders_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"used as a decoder is not .*{key} is set"):
        read(tmp_path, "RobertaModel", **{key: True})
