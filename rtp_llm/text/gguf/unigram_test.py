# SPDX-License-Identifier: Apache-2.0
"""Unigram models in GGUF files give the ids of XLM-RoBERTa's tokenizer in transformers."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from transformers import XLMRobertaTokenizer

from rtp_llm.gguf import GgufError, open_model
from rtp_llm.testing.gguf.vocabularies import hard_text
from rtp_llm.testing.gguf.writer import Typed, write
from rtp_llm.text.gguf.tokenizer import read_tokenizer

_WORDS = ["▁the", "▁house", "▁hou", "se", "s", "▁is", "▁ü", "ber", "▁你", "好", "▁", ".", "ﬁ", "é"]
_LETTERS = [*"abcdefghijklmnopqrtuvwxyz"]  # "s" is a word
_SPECIAL = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]


def _pieces() -> list[tuple[str, float]]:
    scores = (-1.5 - math.sqrt(place) for place in range(len(_WORDS) + len(_LETTERS)))
    rounded = (struct.unpack("<f", struct.pack("<f", score))[0] for score in scores)
    return [*_SPECIAL, *zip([*_WORDS, *_LETTERS], rounded, strict=True), ("<mask>", 0.0)]


def _metadata(folder: Path, architecture: str = "bert", **changes: Any) -> Any:
    texts, scores = zip(*_pieces(), strict=True)
    values = {
        "model": "t5",
        "tokens": [*texts],
        "scores": Typed("f32", [*scores]),
        "token_type": Typed("i32", [3, 3, 3, 2, *[1] * (len(texts) - 5), 3]),
        "bos_token_id": 0,
        "padding_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "mask_token_id": len(texts) - 1,
        **changes,
    }
    keys = {f"tokenizer.ggml.{key}": each for key, each in values.items() if each is not None}
    return open_model(write(folder / "a.gguf", {"general.architecture": architecture, **keys}, {}))


def test_ids_are_those_of_transformers(tmp_path: Path) -> None:
    ours = read_tokenizer(_metadata(tmp_path).metadata)
    theirs = XLMRobertaTokenizer(vocab=_pieces())
    chance = random.Random(3)
    texts = ["", " the houses", "a <mask> b</s>c", *(hard_text(chance) for _ in range(200))]
    for text in texts:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
    pair = theirs("the house", "is")["input_ids"]
    assert ours.encode("the house", "is").ids == pair


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "llama"}, r"tokenizers of the kind t5"),
        ({"scores": None}, r"scores must have one number for each token"),
        ({"unknown_token_id": None}, r"unknown_token_id is missing"),
        ({"precompiled_charsmap": Typed("u8", [1, 2, 3])}, r"unigram model cannot be read"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GgufError, match=message):
        read_tokenizer(_metadata(tmp_path, **changes).metadata)
