# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Regex, pre_tokenizers
from transformers import AutoTokenizer

from rtp_llm.testing.model_folders import byte_level, sentencepiece, write_folder
from rtp_llm.text.tokenizer import Tokenizer

TEXTS = ["a cat", " a cat", "<|im_start|>a cat<|im_end|> and\n a dog", "", "<s>the  house", "  "]
FLAGS: list[dict[str, Any]] = [
    {},
    {"legacy": True},
    {"add_prefix_space": True, "legacy": False},
    {"add_prefix_space": False, "legacy": True},
]


def qwen_like() -> tokenizers.Tokenizer:
    """As Qwen2Tokenizer builds it: an expression, then bytes."""
    backend = byte_level()
    words = Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
        ]
    )
    return backend


@pytest.mark.parametrize(
    ("make", "name", "model_type"),
    [
        (sentencepiece, "LlamaTokenizer", "llama"),
        (sentencepiece, "LlamaTokenizerFast", "deepseek_v3"),
        (sentencepiece, "LlamaTokenizer", "mistral"),
        (sentencepiece, "PreTrainedTokenizerFast", "llama"),
        (byte_level, "LlamaTokenizerFast", "deepseek_v3"),
        (byte_level, "GPT2Tokenizer", "llama"),
        (qwen_like, "Qwen2Tokenizer", "qwen3"),
        (qwen_like, "PreTrainedTokenizerFast", "qwen3"),
        (qwen_like, "PreTrainedTokenizerFast", "qwen2"),
        (qwen_like, None, "qwen3_moe"),
        (byte_level, "GPT2TokenizerFast", "qwen3"),
    ],
)
def test_ids_and_texts_are_those_of_transformers(
    make: Any, name: str | None, model_type: str, tmp_path: Path
) -> None:
    for number, flags in enumerate(FLAGS):
        folder = write_folder(
            tmp_path / str(number),
            make(),
            tokenizer_config={"tokenizer_class": name, **flags},
            config={"model_type": model_type, "eos_token_id": 1},
        )
        ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
        for text in TEXTS:
            ids = theirs.encode(text)
            assert ours.encode(text) == ids, (flags, text, theirs.convert_ids_to_tokens(ids))
            assert ours.decode(ids, False) == theirs.decode(ids), (flags, text)


def test_null_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """GPT2Tokenizer of transformers fails with it."""
    folder = write_folder(
        tmp_path,
        byte_level(),
        tokenizer_config={"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": None},
    )
    assert Tokenizer.from_folder(folder).encode("a") == byte_level().encode("a").ids
