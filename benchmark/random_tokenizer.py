# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of as many tokens as wanted, of random parts, for models with random weights."""

from __future__ import annotations

import json
import pathlib
import random

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from benchmark.random_model import cache_folder, config_folder

_LONGEST = 12  # characters; tokens of trained tokenizers are mostly shorter


def dummy_folder(shape: str) -> pathlib.Path:
    """A folder with the config of a shape, a token that ends answers, and a tokenizer, for
    --load-format dummy."""
    folder = cache_folder() / f"{shape}-tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((config_folder(shape) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 0}))
    save_random_tokenizer(folder / "tokenizer.json", config["vocab_size"])
    return folder


def save_random_tokenizer(file: pathlib.Path, vocab_size: int) -> None:
    """Byte-level, as GPT-2's, Llama-3's and Qwen's; the same one every time. Token 0 is special."""
    chance = random.Random(0)
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    known, merges = set(words), []
    while len(words) < vocab_size - 1:
        pair = chance.choice(words), chance.choice(words)
        if len(merged := "".join(pair)) <= _LONGEST and merged not in known:
            known.add(merged)
            words.append(merged)
            merges.append(pair)
    vocab = {word: place + 1 for place, word in enumerate(words)}
    made = tokenizers.Tokenizer(models.BPE({"<end>": 0, **vocab}, merges))
    made.add_special_tokens([tokenizers.AddedToken("<end>", special=True)])
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(file))
