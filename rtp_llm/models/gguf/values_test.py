# SPDX-License-Identifier: Apache-2.0
"""Configs that are made of the metadata of GGUF files, and files that are refused."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.gguf import GgufError
from rtp_llm.models.config import ModelConfig, ModelConfigError, UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.gguf.architectures import known_gguf_architectures
from rtp_llm.testing.gguf.writer import Tensor, Typed, write

_SIZES = {
    "block_count": 8,
    "context_length": 512,
    "embedding_length": 96,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def read(
    folder: Path, architecture: str, tensors: Mapping[str, Tensor] | None = None, **changes: Any
) -> ModelConfig:
    """The config of a file with `changes` to its metadata; a key with None is left out.

    "_" stands for the architecture and a point, "__" for a point.
    """
    values: dict[str, Any] = {f"{architecture}.{key}": value for key, value in _SIZES.items()}
    for name, value in changes.items():
        key = f"{architecture}.{name[1:]}" if name.startswith("_") else name
        values[key.replace("__", ".")] = value
    metadata = {"general.architecture": architecture, **values}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    embedding = {"token_embd.weight": Tensor("F32", (7, 96))}
    file = write(folder / "a.gguf", metadata, embedding | dict(tensors or {}))
    return read_model_config(file)


def test_what_files_leave_out_has_llama_cpps_constants(tmp_path: Path) -> None:
    config = read(tmp_path, "llama")
    assert config.num_kv_heads == config.num_heads == 4
    assert (config.head_dim, config.vocab_size, config.rope.theta) == (24, 7, 10000.0)
    assert config.tie_word_embeddings and not config.qkv_bias
    config = read(tmp_path, "gemma3", _attention__sliding_window=16)
    assert config.layer_windows == (16, 16, 16, 16, 16, 0, 16, 16)
    assert config.local_rope is not None
    assert (config.rope.theta, config.local_rope.theta) == (1e6, 1e4)
    assert config.attention_scale == 24**-0.5
    config = read(tmp_path, "gemma2")
    assert config.layer_windows == (4096, 0) * 4
    assert (config.soft_cap, config.logit_cap) == (50.0, 30.0)


@pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_divides_queries_by_the_width_for_each_head(
    tmp_path: Path, name: str, layers: int
) -> None:
    changes: dict[str, Any] = {"_attention__sliding_window": 16, "_attention__key_length": 32}
    changes |= {"_attention__value_length": 32, "_block_count": layers}
    assert read(tmp_path, name, **changes).attention_scale == 24**-0.5


def test_sizes_that_are_the_same_in_all_layers_may_be_lists(tmp_path: Path) -> None:
    config = read(
        tmp_path, "qwen3", _attention__head_count_kv=[2] * 8, _feed_forward_length=[64] * 8
    )
    assert (config.num_kv_heads, config.intermediate_size) == (2, 64)
    with pytest.raises(ModelConfigError, match=r"head_count_kv is not the same in all layers"):
        read(tmp_path, "qwen3", _attention__head_count_kv=[2, 1] * 4)


_GEMMA4: dict[str, Any] = {
    "_attention__key_length": 64,
    "_attention__key_length_swa": 32,
    "_attention__value_length": 64,
    "_attention__sliding_window": 16,
    "_attention__sliding_window_pattern": [True, True, True, False] * 2,
    "_attention__head_count_kv": [2, 2, 2, 1] * 2,
    "_attention__shared_kv_layers": 4,
    "_feed_forward_length": [64] * 4 + [128] * 4,
}


def test_layers_of_gemma4_differ(tmp_path: Path) -> None:
    config = read(tmp_path, "gemma4", **_GEMMA4)
    own = config.gemma4
    assert own is not None and (own.full_head_dim, own.full_kv_heads) == (64, 1)
    assert (config.head_dim, config.num_kv_heads, config.intermediate_size) == (32, 2, 64)
    assert own.keys_as_values and own.wide_shared_mlp and own.shared_layers == 4
    values = {"blk.3.attn_v.weight": Tensor("F32", (64, 96))}
    own = read(tmp_path, "gemma4", values, **_GEMMA4).gemma4
    assert own is not None and not own.keys_as_values


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_feed_forward_length": [64] * 3 + [128] * 5}, "feed_forward_length is neither the same"),
        ({"_attention__head_count_kv": [2, 1] * 4}, "head_count_kv differs between layers of sli"),
        ({"_attention__sliding_window": None}, "sliding_window is missing"),
        (
            {"_attention__shared_kv_layers": 9, "_feed_forward_length": 64},
            "num_kv_shared_layers must be less than",
        ),
        (
            {"_feed_forward_length": Typed("i32", [])},
            "feed_forward_length is neither",
        ),
    ],
    ids=str,
)
def test_lists_that_gemma4_cannot_have(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read(tmp_path, "gemma4", **(_GEMMA4 | changes))


def test_stop_and_begin_tokens_are_read(tmp_path: Path) -> None:
    ids = {"tokenizer__ggml__eos_token_id": 3, "tokenizer__ggml__bos_token_id": 1}
    config = read(tmp_path, "llama", **ids)
    assert (config.eos_token_ids, config.bos_token_id) == ((3,), 1)
    none = {"tokenizer__ggml__bos_token_id": 2**32 - 1}
    assert read(tmp_path, "llama", **none).bos_token_id is None
    with pytest.raises(ModelConfigError, match=r"a\.gguf: eos_token_id 7 is outside"):
        read(tmp_path, "llama", tokenizer__ggml__eos_token_id=7)


def test_a_decoder_that_reads_both_ways_is_an_encoder(tmp_path: Path) -> None:
    changes = {"_attention__causal": False, "_embedding_length": 64, "_pooling_type": 3}
    config = read(tmp_path, "qwen2", **changes)
    assert (config.architecture, config.tasks) == ("Qwen2BidirectionalModel", ("embed",))
    assert read(tmp_path, "qwen2", _attention__causal=True).encoder is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_block_count": None}, r"a\.gguf: llama\.block_count is missing"),
        ({"_block_count": "many"}, r"llama\.block_count must be an integer"),
        ({"_embedding_length": 2**31}, r"a\.gguf: head_dim must be a positive integer up to"),
        ({"_attention__layer_norm_rms_epsilon": None}, r"rms_norm_eps must be"),
        ({"_attention__key_length": 32, "_attention__value_length": 16}, r"value_length is 16"),
        ({"_pooling_type": 5}, r"llama\.pooling_type must be an integer from 0 to 4; not 5"),
        ({"_attention__head_count": 0}, r"a\.gguf: num_attention_heads must be a positive"),
    ],
)
def test_broken_keys_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ModelConfigError, GgufError), match=message):
        read(tmp_path, "llama", **changes)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("mamba9", {}, r"GGUF architecture.*mamba9 in .*a\.gguf; supported: llama, qwen2"),
        ("llama", {"_rope__dimension_count": 12}, r"partial rotary.*partial_rotary_factor 0\.5"),
        ("llama", {"_attention__causal": False}, r"LlamaForCausalLM: is_causal false"),
        ("llama", {"_pooling_type": 4}, r"classification head of a GGUF file.*pooling_type is 4"),
        ("llama", {"_rope__scaling__type": "longrope"}, r"other rope type.*longrope"),
    ],
)
def test_what_is_not_supported_is_refused(
    tmp_path: Path, architecture: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(tmp_path, architecture, **changes)


_WORDS = ["<s>", "yes", "no", "maybe"]


@pytest.mark.parametrize(
    ("words", "heads", "message"),
    [
        (_WORDS, {}, ""),
        (_WORDS, {"cls.output.weight": (2, 96)}, ""),
        (_WORDS, {"cls.output.weight": (1, 96)}, r"cls\.output\.weight \[1, 96\] is not the head"),
        (_WORDS, {"cls.output.weight": (96,)}, r"cls\.output\.weight \[96\] is not the head"),
        (
            _WORDS,
            {"cls.output.weight": (2, 96), "cls.output.bias": (2,)},
            r"cls\.output\.bias \[2\]",
        ),
        (_WORDS, {"cls.weight": (2, 96)}, r"cls\.weight \[2, 96\] is not the head"),
        (_WORDS[:2], {"cls.output.weight": (2, 96)}, r'it has no tokens "yes" and "no"'),
        (None, {}, r'it has no tokens "yes" and "no"'),
    ],
)
def test_rerankers_answer_yes_or_no(
    tmp_path: Path, words: list[str] | None, heads: dict[str, tuple[int, ...]], message: str
) -> None:
    tensors = {name: Tensor("F32", shape) for name, shape in heads.items()}
    changes = {"tensors": tensors, "_pooling_type": 4, "tokenizer__ggml__tokens": words}
    if not message:
        assert read(tmp_path, "qwen3", **changes).tasks[0] == "score"
        return
    with pytest.raises(UnsupportedModelError, match=rf"classification head of a GGUF.*{message}"):
        read(tmp_path, "qwen3", **changes)


@pytest.mark.parametrize(
    ("architecture", "kind"), [("clip", None), ("clip", "mmproj"), ("llama", "adapter")]
)
def test_files_without_a_language_model_are_refused(
    tmp_path: Path, architecture: str, kind: str | None
) -> None:
    with pytest.raises(ModelConfigError, match=r"holds no language model .*give the file of"):
        read(tmp_path, architecture, general__type=kind)


_ODD = (0, 1, 7, 2**31, "text", True, -0.5, 1e-30, 1e30, float("inf"), float("nan"), [1, 2, 3])
_ODD_TOO = (Typed("i64", -(2**63)), Typed("u64", 2**64 - 1), [2**31] * 8, [0.5] * 8, [True] * 8)
_KEYS = (
    *_SIZES,
    *(f"attention.{key}" for key in ("head_count_kv", "key_length", "value_length")),
    *(f"attention.{key}" for key in ("kv_lora_rank", "q_lora_rank")),
    *(f"attention.{key}" for key in ("sliding_window", "sliding_window_pattern")),
    *(f"rope.{key}" for key in ("dimension_count", "freq_base", "freq_base_swa")),
    *(f"rope.scaling.{key}" for key in ("type", "factor", "original_context_length")),
    *(f"expert_{key}" for key in ("count", "used_count", "feed_forward_length", "group_count")),
    *(f"ssm.{key}" for key in ("conv_kernel", "state_size", "group_count", "time_step_rank")),
    *("ssm.inner_size", "nextn_predict_layers", "full_attention_interval"),
)


@pytest.mark.parametrize("architecture", known_gguf_architectures())
def test_odd_values_are_read_or_refused(tmp_path: Path, architecture: str) -> None:
    draw, verdicts = random.Random(architecture), set[bool]()
    for _ in range(40):
        keys = draw.sample(_KEYS, draw.randrange(5))
        changes = {f"_{key.replace('.', '__')}": draw.choice((*_ODD, *_ODD_TOO)) for key in keys}
        try:
            verdicts.add(bool(read(tmp_path, architecture, **changes)))
        except (ModelConfigError, UnsupportedModelError) as error:
            assert len(str(error)) < 1000
            verdicts.add(False)
    assert False in verdicts
