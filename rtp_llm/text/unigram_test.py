# SPDX-License-Identifier: Apache-2.0
"""Folders with sentencepiece.bpe.model alone are tokenised as transformers does."""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path

import pytest
from transformers import XLMRobertaTokenizer

from rtp_llm.model_folder import ModelFilesError
from rtp_llm.testing.text.sentencepiece import model_file
from rtp_llm.text.model_files import check_folder
from rtp_llm.text.sentencepiece_model import BPE, NORMAL, UNIGRAM
from rtp_llm.text.tokenizer import Tokenizer

WORDS = ["▁the", "▁house", "▁hou", "se", "s", "▁is", "▁ü", "ber", "▁你", "好", "▁", "."]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
PIECES = [(word, -1.5 - math.sqrt(place)) for place, word in enumerate([*WORDS, *LETTERS])]
TEXTS = [
    "",
    " ",
    "the houses",
    "  The\thouse\nis  über all. ",
    "你好 你好",
    "a <mask> b</s>c",
    "😀 x",
    "zz" * 50,
]


def save(folder: Path, kind: str = UNIGRAM, **config: str) -> bytes:
    own = [(text, 0.0, NORMAL) for text in ("<unk>", "<s>", "</s>")]
    content = model_file([*own, *((text, score, NORMAL) for text, score in PIECES)], kind)
    (folder / "sentencepiece.bpe.model").write_bytes(content)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return content


def test_ids_are_those_of_transformers(tmp_path: Path) -> None:
    save(tmp_path, tokenizer_class="XLMRobertaTokenizer")
    check_folder(tmp_path, weights=False)
    ours = Tokenizer.from_folder(tmp_path)
    first = [(each, 0.0) for each in ("<s>", "<pad>", "</s>", "<unk>")]
    rounded = [(text, struct.unpack("<f", struct.pack("<f", score))[0]) for text, score in PIECES]
    theirs = XLMRobertaTokenizer(vocab=[*first, *rounded, ("<mask>", 0.0)])
    chance = random.Random(0)
    more = ["".join(chance.choices("thousei .ü你\t", k=30)) for _ in range(200)]
    for text in [*TEXTS, *more]:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        assert ours.decode(ours.encode(text)) == theirs.decode(
            theirs(text)["input_ids"], skip_special_tokens=True
        )
    pair = theirs(TEXTS[2], TEXTS[4])["input_ids"]
    assert ours.encode_pair(TEXTS[2], TEXTS[4], 99) == pair
    assert ours.vocab_size == len(theirs) == len(PIECES) + 5


@pytest.mark.parametrize(
    ("kind", "cut", "given", "words"),
    [
        (BPE, 0, "XLMRobertaTokenizer", "is no unigram model of sentencepiece: it is bpe"),
        (UNIGRAM, 7, "XLMRobertaTokenizer", "is no model of sentencepiece: "),
        (
            UNIGRAM,
            0,
            "CamembertTokenizer",
            "CamembertTokenizer are not known .*save_pretrained",
        ),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, kind: str, cut: int, given: str, words: str
) -> None:
    content = save(tmp_path, kind, tokenizer_class=given)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(content[: len(content) - cut])
    with pytest.raises(ModelFilesError, match=words):
        Tokenizer.from_folder(tmp_path)
