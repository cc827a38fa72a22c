# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE, the model that GGUF calls gpt2: merges from the file, cuts by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from rtp_llm.gguf.tokens import PREFIX
from rtp_llm.gguf.values import Texts
from rtp_llm.model_folder import name_of
from rtp_llm.text.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from rtp_llm.text.gguf.vocabulary import Vocabulary

_MERGES = PREFIX + "merges"


def pre_tokenizer_of(vocabulary: Vocabulary) -> PreTokenizer:
    """How texts are cut; raises GgufError naming one that is not known here."""
    name = vocabulary.metadata.text(f"{PREFIX}pre") or "default"
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise vocabulary.error(
            f"{PREFIX}pre is {name_of(name)}, and how that cuts texts is not known here. Serve the "
            "model that the file was made of, or add its tokenizer.json to the file under the key "
            "tokenizer.huggingface.json"
        )
    return found


def byte_bpe(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Build the tokenizer, without its special tokens. Raises GgufError."""
    cuts = pre_tokenizer_of(vocabulary)
    texts = vocabulary.metadata.texts(_MERGES)
    if texts is None:
        raise vocabulary.error(f"a tokenizer of the kind gpt2 needs {_MERGES}")
    numbers = vocabulary.numbered()
    backend = tokenizers.Tokenizer(
        models.BPE(
            numbers,
            [*_merges(vocabulary, numbers, texts)],
            ignore_merges=cuts.whole_words,
        )
    )
    if cuts.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[Any] = [
        pre_tokenizers.Split(tokenizers.Regex(each), "isolated") for each in cuts.patterns
    ]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _merges(
    vocabulary: Vocabulary, numbers: dict[str, int], texts: Texts
) -> Iterator[tuple[str, str]]:
    for text in texts:
        at = text.find(" ", 1)
        first, second = text[:at], text[at + 1 :]
        if at < 0 or not (first in numbers and second in numbers and first + second in numbers):
            raise vocabulary.error(
                f"{_MERGES} has {name_of(text)}, which is not two tokens that make a third"
            )
        yield first, second
