# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers, as the metadata of GGUF files, and texts that are hard to cut."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from rtp_llm.gguf import Metadata, open_model
from rtp_llm.testing.gguf.writer import Typed, packed

CONTROLS = ("<unk>", "<s>", "</s>", "<|im_end|>")
"""Special tokens of every vocabulary here, with the ids 0 to 3."""
USER_DEFINED = ("<think>", "  ", "\n\n")
_SENTENCE = (
    "the house hous es lived don't DON'T we'll I'VE HTTPServer camelCase snake_case x1 3.14 "
    "1234567 10,000 ½ ² Zürich naïve e\u0301te\u0301 ﬁne Ωmega Привет مرحبا नमस्ते 你好世界 "
    "こんにちは 안녕하세요 😀 👍🏽 👨\u200d👩\u200d👧 \u200b ¡hola! … “quotes” -> == != /* */ "
    "// #tag @name a.b@c.de https://x.y/z?q=1&r=2 ▁ <0x0A> [UNK] ## \u00a0 \ufeff 가각 ǅ ᾼ"
)
_WORDS = _SENTENCE.split(" ")
_BETWEEN = (" ", " ", " ", "", "  ", "   ", "\n", "\n\n", "\r\n", " \n ", "\t", "\t\t", "\u3000")
CORPUS = tuple(" ".join(_WORDS[at:] + _WORDS[:at]) for at in range(0, len(_WORDS), 3))


def hard_text(chance: random.Random, special: tuple[str, ...] = ()) -> str:
    """A text of words of many scripts, spaces of every kind, any characters and special tokens."""
    parts = []
    for _ in range(chance.randrange(12)):
        match chance.randrange(8):
            case 0 if special:
                parts.append(chance.choice(special))
            case 1:
                parts.append("".join(_any(chance) for _ in range(chance.randrange(1, 5))))
            case _:
                word = chance.choice(_WORDS)
                parts.append(word[: chance.randrange(1, 9)] if chance.randrange(3) == 0 else word)
        parts.append(chance.choice(_BETWEEN))
    return "".join(parts)


def _any(chance: random.Random) -> str:
    limit = chance.choice((0x80, 0x800, 0x3000, 0x10000, 0x20000))
    code = chance.randrange(1, limit)
    return "x" if 0xD800 <= code < 0xE000 else chr(code)


def metadata_of(folder: Path, values: dict[str, Any]) -> Metadata:
    """The values as a file has them; it is written into `folder`."""
    file = folder / "tokenizer.gguf"
    file.write_bytes(packed({"general.architecture": "llama", **values}, {}))
    return open_model(file).metadata


@cache
def trained_merges() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Tokens of a byte-level BPE by id, without the added ones, and its merges."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=[*CONTROLS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tuple(tokens), tuple((first, second) for first, second in model["merges"])


@cache
def marked_merges() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The same for a BPE with marks for spaces and a token of each byte. As in Gemma's, no token
    has a line break and something else."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token=CONTROLS[0], byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    lines = pre_tokenizers.Split(tokenizers.Regex("\n+"), "isolated")
    words = pre_tokenizers.Split("▁", "merged_with_next")
    backend.pre_tokenizer = pre_tokenizers.Sequence([lines, words])
    special = [*CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=special, show_progress=False)
    backend.train_from_iterator([*CORPUS, "\n\n\n\n \n"], trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tuple(tokens), tuple((first, second) for first, second in model["merges"])


def gemma_values(**more: Any) -> dict[str, Any]:
    """The metadata of that BPE as Gemma 4 has it."""
    tokens, merges = marked_merges()
    added = [each for each in USER_DEFINED if each not in tokens]
    kinds = [2, *[3] * (len(CONTROLS) - 1), *[6] * 256]
    kinds += [1] * (len(tokens) - len(kinds)) + [4] * len(added)
    values = {
        "model": "gemma4",
        "tokens": [*tokens, *added],
        "token_type": Typed("i32", kinds),
        "merges": [f"{first} {second}" for first, second in merges],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def byte_level_values(pre: str, **more: Any) -> dict[str, Any]:
    """The metadata of the trained BPE under this name of `pre`; `more`: keys of the tokenizer."""
    tokens, merges = trained_merges()
    kinds = [3] * len(CONTROLS) + [1] * (len(tokens) - len(CONTROLS)) + [4] * len(USER_DEFINED)
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*tokens, *USER_DEFINED],
        "token_type": Typed("i32", kinds),
        "merges": [f"{first} {second}" for first, second in merges],
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


@cache
def scored_pieces(seed: int = 0) -> tuple[str, ...]:
    """Pieces of words in any order, with every character that they have among them; the earlier
    ones have the better scores."""
    chance = random.Random(seed)
    pieces = {"▁"}
    for word in _WORDS[:40]:
        for _ in range(25):
            whole = "▁" * chance.randrange(2) + word
            begin = chance.randrange(len(whole))
            pieces.add(whole[begin : begin + chance.randrange(1, 7)])
    letters = {letter for piece in pieces for letter in piece}
    ordered = sorted((pieces | letters) - {*USER_DEFINED})
    chance.shuffle(ordered)
    return tuple(ordered)


def sentencepiece_values(seed: int = 0, **more: Any) -> dict[str, Any]:
    """The metadata of those pieces, with control, byte and user-defined tokens."""
    rows = [(text, 0.0, 3) for text in CONTROLS]
    rows[0] = (CONTROLS[0], 0.0, 2)
    rows += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    rows += [(text, -1000.0, 4) for text in USER_DEFINED]
    rows += [(text, -float(place), 1) for place, text in enumerate(scored_pieces(seed))]
    texts, scores, kinds = zip(*rows, strict=True)
    values = {
        "model": "llama",
        "tokens": [*texts],
        "scores": Typed("f32", [*scores]),
        "token_type": Typed("i32", [*kinds]),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}
