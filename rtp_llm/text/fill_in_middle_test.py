# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from rtp_llm.testing.model_folders import byte_level, write_folder
from rtp_llm.text.fill_in_middle import fill_in_middle
from rtp_llm.text.tokenizer import Tokenizer

# Tokens of a family in its vocabulary, and its prompt for the prefix "a" and the suffix "b".
FAMILIES = [
    (
        "<|fim_prefix|> <|fim_suffix|> <|fim_middle|>",
        "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    ),
    ("<fim_prefix> <fim_suffix> <fim_middle>", "<fim_prefix>a<fim_suffix>b<fim_middle>"),
    (
        "<｜fim▁hole｜> <｜fim▁begin｜> <｜fim▁end｜>",
        "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>",
    ),
    (
        "<[fim-suffix]> <[fim-prefix]> <[fim-middle]>",
        "<[fim-suffix]>b<[fim-prefix]>a<[fim-middle]>",
    ),
    ("▁<PRE> ▁<MID> ▁<SUF> ▁<EOT>", "▁<PRE>a▁<SUF>b▁<MID>"),
    ("[SUFFIX] [PREFIX] [MIDDLE]", "[SUFFIX]b[PREFIX]a"),
]


def tokenizer_with(folder: Path, names: str) -> Tokenizer:
    backend = byte_level()
    backend.add_special_tokens(names.split())
    return Tokenizer.from_folder(write_folder(folder, backend))


@pytest.mark.parametrize(("names", "prompt"), FAMILIES)
def test_prompts_of_the_families(names: str, prompt: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", names)
    found = fill_in_middle(tokenizer, tokenizer.vocab_size)
    assert found is not None
    a, b = (tokenizer.encode(text, add_special_tokens=False) for text in "ab")
    assert tokenizer.decode(found.prompt(a, b), skip_special_tokens=False) == prompt
    assert {tokenizer.convert_tokens_to_ids(name) for name in names.split()} == {*found.ends}


def test_models_without_the_tokens(tmp_path: Path) -> None:
    names = "<|fim_prefix|> <|fim_suffix|>"
    tokenizer = tokenizer_with(tmp_path / "two", names)
    assert fill_in_middle(tokenizer, tokenizer.vocab_size) is None
    tokenizer = tokenizer_with(tmp_path / "three", names + " <|fim_middle|>")
    assert fill_in_middle(tokenizer, tokenizer.vocab_size) is not None
    assert fill_in_middle(tokenizer, tokenizer.vocab_size - 1) is None
