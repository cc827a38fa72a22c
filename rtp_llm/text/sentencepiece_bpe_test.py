# SPDX-License-Identifier: Apache-2.0
"""Folders with tokenizer.model alone are tokenised as transformers' LlamaTokenizer does."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaTokenizer

from rtp_llm.model_folder import ModelFilesError
from rtp_llm.testing.text.sentencepiece import model_file
from rtp_llm.text.model_files import check_folder
from rtp_llm.text.sentencepiece_bpe import merges_by_score
from rtp_llm.text.sentencepiece_model import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
)
from rtp_llm.text.tokenizer import Tokenizer

WORDS = ["▁t", "he", "▁the", "er", "▁a", "us", "▁h", "▁ho", "use", "▁house", "▁▁"]
LETTERS = ["▁", *"etaoinshrdluc.ü"]
FIRST = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTES = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
PIECES = [*FIRST, *BYTES]
# By falling scores, which is not their order in the file.
BEST_FIRST = [*WORDS, *LETTERS]
PIECES += sorted((text, -float(place), NORMAL) for place, text in enumerate(BEST_FIRST))
TEXTS = ["", " ", "the houses", "  The\thouse\n", "你好 ü", "a<s>the </s> e", "x <tool>the y", "😀"]


def save(folder: Path, kind: str = BPE, **config: Any) -> None:
    (folder / "tokenizer.model").write_bytes(model_file(PIECES, kind))
    (folder / "config.json").write_text("{}")
    values = {"tokenizer_class": "LlamaTokenizer", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


@pytest.mark.parametrize("config", [{}, {"add_eos_token": True}, {"add_bos_token": False}])
def test_ids_are_those_of_transformers(tmp_path: Path, config: dict[str, Any]) -> None:
    added = {str(len(PIECES)): {"content": "<tool>", "special": True}}
    save(tmp_path, added_tokens_decoder=added, **config)
    check_folder(tmp_path, weights=False)
    ours = Tokenizer.from_folder(tmp_path)
    begins = {"add_bos_token": True, **config}
    vocab = {text: number for number, (text, _, _) in enumerate(PIECES)}
    theirs = LlamaTokenizer(vocab=vocab, merges=merges_by_score(BEST_FIRST), **begins)
    theirs.add_tokens(["<tool>"], special_tokens=True)
    chance = random.Random(0)
    more = ["".join(chance.choices("the ousaü\n▁漢", k=30)) for _ in range(200)]
    for text in [*TEXTS, *more]:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.vocab_size == len(theirs)


@pytest.mark.parametrize(
    ("kind", "removes", "piece", "words"),
    [
        (UNIGRAM, False, None, "is no BPE of sentencepiece: it is unigram"),
        (BPE, True, None, "normalises characters or spaces.*save_pretrained"),
        (BPE, False, ("he", -1.0, NORMAL), "has the piece he more than once"),
        (BPE, False, ("▁▁▁", 0.0, USER_DEFINED), "pieces of spaces that are never merged"),
        (BPE, False, ("e" * 1025, -1.0, NORMAL), "a piece of more than 1024 letters"),
    ],
)
def test_other_models_are_refused(
    tmp_path: Path, kind: str, removes: bool, piece: tuple[str, float, int] | None, words: str
) -> None:
    save(tmp_path)
    content = model_file([*PIECES, piece] if piece else PIECES, kind, removes_spaces=removes)
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(ModelFilesError, match=words):
        Tokenizer.from_folder(tmp_path)


def test_a_model_that_would_drop_characters_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    pieces = [piece for piece in PIECES if piece[2] not in (BYTE, UNKNOWN)]
    (tmp_path / "tokenizer.model").write_bytes(model_file(pieces, BPE))
    with pytest.raises(ModelFilesError, match="neither an unknown piece nor one of each byte"):
        Tokenizer.from_folder(tmp_path)


def test_an_integer_without_end_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\xff" * 100_000)
    with pytest.raises(ModelFilesError, match="an integer has more than 64 bits"):
        Tokenizer.from_folder(tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")
    with pytest.raises(ModelFilesError, match="is no model of sentencepiece"):
        Tokenizer.from_folder(tmp_path)
