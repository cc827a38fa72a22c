# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE, the model that GGUF calls gpt2: merges from the file, cuts by name."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from rtp_llm.gguf.tokens import PREFIX
from rtp_llm.model_folder import name_of
from rtp_llm.text.gguf.merges import merges_of
from rtp_llm.text.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from rtp_llm.text.gguf.vocabulary import Vocabulary


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
    numbers = vocabulary.numbered()
    backend = tokenizers.Tokenizer(
        models.BPE(numbers, merges_of(vocabulary, numbers), ignore_merges=cuts.whole_words)
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
