# SPDX-License-Identifier: Apache-2.0
"""Folders with vocab.txt alone are tokenised as transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import BertTokenizer, MPNetTokenizer

from rtp_llm.model_folder import ModelFilesError
from rtp_llm.text.tokenizer import Tokenizer

WORDS = [
    "the",
    "cat",
    "##s",
    "caf",
    "##e",
    "##é",
    "The",
    "Cat",
    "Z",
    "z",
    "##u",
    "你",
    "好",
    ",",
    ".",
]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MPNET = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
TEXTS = [
    "",
    "The cats, the café.",
    "你好 cat",
    "zu ZU\tünique\u0000 cat [SEP] the",
    "a" * 101,
    "x\n y ",
]


def save(folder: Path, special: list[str], **config: Any) -> None:
    rest = [each for each in LETTERS if each not in WORDS] + [f"##{each}" for each in LETTERS]
    words = dict.fromkeys([*special, *WORDS, *rest])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False},
    ],
)
def test_bert(tmp_path: Path, config: dict[str, Any]) -> None:
    save(tmp_path, BERT, **config)
    ours = Tokenizer.from_folder(tmp_path)
    theirs = BertTokenizer.from_pretrained(tmp_path, **config)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"], text
    pair = theirs(TEXTS[1], TEXTS[2])
    assert ours.encode_pair(TEXTS[1], TEXTS[2], 99) == pair["input_ids"]
    assert ours.second_text(TEXTS[1]) == pair["token_type_ids"].index(1)


def test_mpnet(tmp_path: Path) -> None:
    names = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
    save(tmp_path, MPNET, tokenizer_class="MPNetTokenizer", **names)
    ours, theirs = Tokenizer.from_folder(tmp_path), MPNetTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"], text
    assert ours.encode_pair(TEXTS[1], TEXTS[2], 99) == theirs(TEXTS[1], TEXTS[2])["input_ids"]
    assert ours.second_text(TEXTS[1]) == 0


def test_a_vocabulary_without_special_tokens_is_named(tmp_path: Path) -> None:
    save(tmp_path, BERT[:2])
    with pytest.raises(ModelFilesError, match=r"vocab.txt has no token \[SEP\]"):
        Tokenizer.from_folder(tmp_path)
