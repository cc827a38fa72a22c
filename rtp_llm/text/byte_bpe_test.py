# SPDX-License-Identifier: Apache-2.0
"""Folders with vocab.json and merges.txt alone are tokenised as transformers does."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Tokenizer, Qwen2Tokenizer, RobertaTokenizer

from rtp_llm.model_folder import ModelFilesError
from rtp_llm.text.model_files import check_folder
from rtp_llm.text.token_bytes import BYTE_LETTERS
from rtp_llm.text.tokenizer import Tokenizer

CLASSES: dict[str, Any] = {
    "GPT2Tokenizer": GPT2Tokenizer,
    "Qwen2Tokenizer": Qwen2Tokenizer,
    "RobertaTokenizer": RobertaTokenizer,
}
ENDS = {"GPT2Tokenizer": "<|endoftext|>", "Qwen2Tokenizer": "<|endoftext|>"}
MERGES = ["h e", "t he", "Ġ the", "Ġ t", "e r", "1 2", "l l", "Ġ a", "Ã ¤"]
TEXTS = [
    "the theer",
    " the\n\n 12345, I'll",
    "a<|endoftext|> b",
    "ä e\u0308 漢字 😀",
    "",
    "  x  <tool> y",
]


def save(folder: Path, name: str, **config: Any) -> dict[str, int]:
    """The vocabulary: special tokens, bytes and what the merges make."""
    first = [ENDS[name]] if name in ENDS else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    texts = [
        *first,
        *map(BYTE_LETTERS.__getitem__, range(256)),
        *(merge.replace(" ", "") for merge in MERGES),
    ]
    vocab = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")
    (folder / "config.json").write_text("{}")
    values = {"tokenizer_class": name, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return vocab


@pytest.mark.parametrize("name", CLASSES)
def test_ids_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    vocab = save(tmp_path, name)
    added = {"content": "<tool>", "special": False, "normalized": False}
    save(tmp_path, name, added_tokens_decoder={str(len(vocab)): added})
    check_folder(tmp_path, weights=False)
    ours = Tokenizer.from_folder(tmp_path)
    theirs = CLASSES[name](vocab=vocab, merges=[tuple(each.split()) for each in MERGES])
    theirs.add_tokens(["<tool>"])
    chance = random.Random(0)
    more = ["".join(chance.choices("the 12äl\n'<", k=30)) for _ in range(200)]
    for text in [*TEXTS, *more]:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids, text
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
    assert ours.vocab_size == len(theirs)


def test_the_class_of_the_model_type_is_taken(tmp_path: Path) -> None:
    vocab = save(tmp_path, "Qwen2Tokenizer")
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(
        ModelFilesError, match=r"None cuts texts is not known here.*save_pretrained"
    ):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    assert Tokenizer.from_folder(tmp_path).encode("the") == [vocab["the"]]
    # Whatever class the file names, as AutoTokenizer does it.
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    assert Tokenizer.from_folder(tmp_path).encode("the") == [vocab["the"]]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("merges.txt", "h q", "h q, which is not two tokens that make a third"),
        ("vocab.json", '{"h": "x"}', "must have an id for each token"),
        ("added_tokens.json", '{"<x>": 5}', "'<x>' has the id 5, but the vocabulary gives it"),
        ("added_tokens.json", '{"<x>": "y"}', "'<x>' must have an id"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, file: str, content: str, words: str) -> None:
    save(tmp_path, "GPT2Tokenizer")
    (tmp_path / file).write_text(content)
    with pytest.raises(ModelFilesError, match=words):
        Tokenizer.from_folder(tmp_path)
