# SPDX-License-Identifier: Apache-2.0
"""Tokenizers made from GGUF metadata give the ids of those that the metadata was made of."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import BertTokenizer, GemmaTokenizer

from rtp_llm.gguf import GgufError
from rtp_llm.model_folder import ModelFilesError
from rtp_llm.testing.gguf.tokenizer_twins import BYTE_LEVEL, byte_level_pair, sentencepiece_pair
from rtp_llm.testing.gguf.vocabularies import (
    CONTROLS,
    USER_DEFINED,
    byte_level_values,
    gemma_values,
    hard_text,
    marked_merges,
    metadata_of,
    sentencepiece_values,
)
from rtp_llm.testing.gguf.writer import Typed
from rtp_llm.text.gguf.pre_tokenizers import PRE_TOKENIZERS
from rtp_llm.text.gguf.tokenizer import read_tokenizer
from rtp_llm.text.token_bytes import decoder_style

COMPOSED = ("qwen2", "qwen35", "olmo", "command-r")
ADDED = (*CONTROLS, *USER_DEFINED)


def ids(backend: tokenizers.Tokenizer, text: str, special: bool = False) -> list[int]:
    found: list[int] = backend.encode(text, add_special_tokens=special).ids
    return found


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_byte_level_bpe(tmp_path: Path, pre: str) -> None:
    ours, theirs = byte_level_pair(tmp_path, pre)
    assert decoder_style(ours) is not None
    chance = random.Random(pre)
    for _ in range(150):
        text = hard_text(chance, ADDED)
        found = ids(ours, text)
        assert found == ids(theirs, text), text
        assert pre in COMPOSED or ours.decode(found, skip_special_tokens=False) == text


@pytest.mark.parametrize("prefix", [True, False])
def test_bpe_by_scores(tmp_path: Path, prefix: bool) -> None:
    ours, theirs, plain = sentencepiece_pair(tmp_path, prefix)
    assert decoder_style(ours) is not None
    chance = random.Random(prefix)
    for _ in range(300):
        text = hard_text(chance, ADDED)
        found = ids(ours, text)
        assert found == plain.encode(text), text
        # transformers merges letters to the token of a byte, and marks to tokens of spaces.
        assert "<0x0A>" in text or "▁" in text or found == ids(theirs, text), text
        shown = text.replace("▁", " ")
        assert prefix or ours.decode(found, skip_special_tokens=False) == shown
    plainly = "no such 😀 token\there"
    assert ours.decode(ids(ours, plainly)) == plainly


def test_bpe_by_merges_with_marks_for_spaces(tmp_path: Path) -> None:
    """As transformers' own class does it, which cuts nothing at line breaks."""
    ours = read_tokenizer(metadata_of(tmp_path, gemma_values()))
    assert decoder_style(ours) is not None
    tokens, merges = marked_merges()
    numbers = {token: number for number, token in enumerate(tokens)}
    theirs: Any = GemmaTokenizer(
        vocab=numbers, merges=[*merges], unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    plain = theirs._tokenizer
    plain.add_special_tokens([tokenizers.AddedToken(each, special=True) for each in CONTROLS])
    rest = [each for each in USER_DEFINED if each not in numbers]
    plain.add_tokens([tokenizers.AddedToken(each, normalized=False) for each in rest])
    chance = random.Random(3)
    for _ in range(300):
        text = hard_text(chance, ADDED)
        found = ids(ours, text)
        assert [ours.id_to_token(each) for each in found] == [
            plain.id_to_token(each) for each in ids(plain, text)
        ], text
        assert ours.decode(found, skip_special_tokens=False) == text.replace("▁", " ")
    assert ids(ours, "the house", True)[0] == 1


WORDS = ("the", "cat", "caf", "Z", "z", "你", "好", ",", ".", "[", "]", "café")
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def bert_values(vocabulary: list[str], **more: Any) -> dict[str, Any]:
    def spelled(token: str) -> str:
        if token in BERT:
            return token
        return token[2:] if token.startswith("##") else "▁" + token

    values = {
        "model": "bert",
        "tokens": [*map(spelled, vocabulary)],
        "token_type": Typed("i32", [3 if token in BERT else 1 for token in vocabulary]),
        "unknown_token_id": 1,
        "bos_token_id": 2,
        "seperator_token_id": 3,
        "padding_token_id": 0,
        "mask_token_id": 4,
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


@pytest.mark.parametrize("cased", [False, True, None])
def test_wordpiece(tmp_path: Path, cased: bool | None) -> None:
    """None: the file does not say, and its words have no capitals."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = [each for each in WORDS if cased or each == each.lower()]
    rest = [*dict.fromkeys([*words, *letters])]
    vocabulary = [*BERT, *rest, *(f"##{each}" for each in (*letters, "s", "[", "é") if each)]
    vocabulary = [*dict.fromkeys(vocabulary)]
    more = {} if cased is None else {"normalizer.lowercase": not cased}
    ours = read_tokenizer(metadata_of(tmp_path, bert_values(vocabulary, **more)))
    numbers = {token: number for number, token in enumerate(vocabulary)}
    theirs: Any = BertTokenizer(vocab=numbers, do_lower_case=not cased)
    chance = random.Random(7)
    texts = [
        "The cats, the Café.",
        "你好 [MASK] [x]",
        *(hard_text(chance, BERT) for _ in range(100)),
    ]
    for text in texts:
        assert ids(ours, text, True) == theirs(text)["input_ids"], text
    pair = ours.encode("the cat", "cats")
    assert pair.ids == theirs("the cat", "cats")["input_ids"]
    assert pair.type_ids == theirs("the cat", "cats")["token_type_ids"]


def test_a_vocabulary_with_capitals_keeps_them(tmp_path: Path) -> None:
    ours = read_tokenizer(metadata_of(tmp_path, bert_values([*BERT, "The", "the"])))
    assert ids(ours, "The the") == [5, 6]


@pytest.mark.parametrize(
    ("values", "before", "after"),
    [
        (byte_level_values("gpt-2"), [], []),
        (byte_level_values("llama-bpe"), [1], []),
        (byte_level_values("llama-bpe", add_bos_token=False, add_eos_token=True), [], [2]),
        (sentencepiece_values(), [1], []),
        (sentencepiece_values(add_bos_token=False), [], []),
        (sentencepiece_values(add_eos_token=True), [1], [2]),
        (sentencepiece_values(bos_token_id=3), [3], []),
    ],
)
def test_first_and_last_tokens(
    tmp_path: Path, values: dict[str, Any], before: list[int], after: list[int]
) -> None:
    ours = read_tokenizer(metadata_of(tmp_path, values))
    plain = ids(ours, "the house")
    assert ids(ours, "the house", True) == [*before, *plain, *after]
    assert ids(ours, "", True) == [*before, *after]
    pair = ours.encode("the", "house")
    whole = [*before, *ids(ours, "the"), *after]
    assert pair.ids == [*whole, *before, *ids(ours, "house"), *after]
    assert pair.type_ids == [0] * len(whole) + [1] * (len(pair.ids) - len(whole))


def test_a_whole_tokenizer_json_comes_first(tmp_path: Path) -> None:
    inside, _ = byte_level_pair(tmp_path, "gpt-2")
    key = "tokenizer.huggingface.json"
    values = {**sentencepiece_values(), key: inside.to_str()}
    found = read_tokenizer(metadata_of(tmp_path, values))
    assert ids(found, "the 你好 house") == ids(inside, "the 你好 house")
    with pytest.raises(ModelFilesError, match=f"cannot read {key} of .*tokenizer.gguf"):
        read_tokenizer(metadata_of(tmp_path, {**values, key: "{}"}))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "has no tokenizer (tokenizer.ggml.model and tokenizer.ggml.tokens)"),
        (byte_level_values("afmoe"), "tokenizer.ggml.pre is afmoe, and how that cuts texts is not"),
        (byte_level_values("gpt-2", model="t5"), "of the kind t5 (tokenizer.ggml.model) are not"),
        (byte_level_values("gpt-2", merges=["a bc d"]), "tokenizer.ggml.merges has a bc d"),
        (byte_level_values("gpt-2", merges=["ab"]), "tokenizer.ggml.merges has ab"),
        (byte_level_values("gpt-2", bos_token_id=10**6), "bos_token_id is 1000000, and there are"),
        (byte_level_values("gpt-2", token_type=Typed("i32", [1])), "has 1 values for "),
        (sentencepiece_values(scores=Typed("f32", [1.0])), "must have one number for each token"),
        (sentencepiece_values(tokens=["a"] * 623), "the token a is there more than once"),
        (byte_level_values("gpt-2", model=3), "tokenizer.ggml.model must be a text"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(GgufError, match=re.escape(words)):
        read_tokenizer(metadata_of(tmp_path, values))


SAMPLE = "I'LL pay 12345 caféLatte, (x)=$3 你好！\r\n\n  e\u0301 a/\n"
# Those that no class of transformers has.
CUTS = {
    "default": "I|'|LL| pay| |123|45| caféLatte|,| |(|x|)=$|3| 你好|！|\r\n\n | e|\u0301| a|/|\n",
    "deepseek-v3": (
        "I|'LL| pay| |123|45| caféLatte|,| (|x|)=$|3| |你好|！\r\n\n| | e\u0301| a|/\n"
    ),
    "deepseek-coder": (
        "I|'|LL| pay| |1|2|3|4|5| caféLatte|,| (|x|)|=$|3| |你好|！|\r|\n|\n| | e|\u0301| a|/|\n"
    ),
    "kimi-k2": "I'LL| pay| |123|45| café|Latte|,| (|x|)=$|3| |你好|！\r\n\n| | e\u0301| a|/\n",
    "tiny_aya": "I'LL| pay| |12|345| café|Latte|,| (|x|)=$|3| 你好|！\r\n\n| | e\u0301| a|/\n",
    "bloom": "I'LL| pay| 12345| caféLatte|, (|x|)|=$3| 你好！|\r\n\n | e\u0301| a/|\n",
    "laguna": (
        "I|'LL| pay| |1|2|3|4|5| caféLatte|,| (|x|)=$|3| 你好|！\r|\n\n| | e|\u0301| a|/|\n"
    ),
}


def test_every_list_of_patterns_cuts(tmp_path: Path) -> None:
    found = {}
    for patterns in {row.patterns for row in PRE_TOKENIZERS.values()}:
        names = [each for each, row in PRE_TOKENIZERS.items() if row.patterns == patterns]
        ours = read_tokenizer(metadata_of(tmp_path, byte_level_values(names[0])))
        step: Any = ours.pre_tokenizer
        pieces = [SAMPLE[begin:end] for _, (begin, end) in step.pre_tokenize_str(SAMPLE)]
        assert "".join(pieces) == SAMPLE, names
        found |= dict.fromkeys(names, "|".join(pieces))
    assert {name: found[name] for name in CUTS} == CUTS
