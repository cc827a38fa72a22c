# SPDX-License-Identifier: Apache-2.0
"""The tokenizer in the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import processors

from rtp_llm.gguf import Metadata
from rtp_llm.gguf.tokens import CONTROL, PREFIX, UNKNOWN, USER_DEFINED
from rtp_llm.model_folder import name_of
from rtp_llm.text.gguf.byte_bpe import byte_bpe, pre_tokenizer_of
from rtp_llm.text.gguf.sentencepiece import gemma_bpe, sentencepiece_bpe
from rtp_llm.text.gguf.unigram import unigram
from rtp_llm.text.gguf.vocabulary import Vocabulary, read_vocabulary
from rtp_llm.text.gguf.wordpiece import wordpiece
from rtp_llm.text.tokenizer_json import parse_tokenizer_json

# Of the models with a unigram model those that are read are XLM-RoBERTa's.
_ENCODER = "bert"
_WHOLE = "tokenizer.huggingface.json"


def read_tokenizer(metadata: Metadata) -> tokenizers.Tokenizer:
    """Build it; it adds the special tokens that the file asks for. Raises GgufError."""
    whole = metadata.text(_WHOLE)
    if whole is not None:
        return parse_tokenizer_json(whole.encode(), f"{_WHOLE} of {metadata.file}")
    vocabulary = read_vocabulary(metadata)
    match vocabulary.model:
        case "gpt2":
            backend, adds_bos = byte_bpe(vocabulary), pre_tokenizer_of(vocabulary).add_bos
        case "llama":
            backend, adds_bos = sentencepiece_bpe(vocabulary), True
        case "gemma4":
            backend, adds_bos = gemma_bpe(vocabulary), True
        case "bert":
            return wordpiece(vocabulary)
        case "t5" if metadata.architecture == _ENCODER:
            return unigram(vocabulary)
        case other:
            raise vocabulary.error(
                f"tokenizers of the kind {name_of(other)} ({PREFIX}model) are not read here; gpt2, "
                f"llama, gemma4 and bert are, or a tokenizer.json under the key {_WHOLE}"
            )
    _add_tokens(backend, vocabulary)
    begin = "bos" if vocabulary.flag("add_bos_token", adds_bos) else None
    end = "eos" if vocabulary.flag("add_eos_token", False) else None
    if (processor := _processor(vocabulary, begin, end)) is not None:
        backend.post_processor = processor
    return backend


def _add_tokens(backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Let control tokens and those of the user be found before anything is cut or merged."""
    for kinds, special in ((CONTROL, UNKNOWN), True), ((USER_DEFINED,), False):
        added = [
            tokenizers.AddedToken(text, normalized=False, special=special)
            for text in vocabulary.of_kind(*kinds)
        ]
        backend.add_special_tokens(added) if special else backend.add_tokens(added)


def _processor(
    vocabulary: Vocabulary, begin: str | None, end: str | None
) -> processors.TemplateProcessing | None:
    """Adds the tokens of these names, where the vocabulary has them, around each text."""
    first, last = ([name] if name in vocabulary.ids else [] for name in (begin, end))
    if not first and not last:
        return None
    special: list[Any] = [
        {"id": name, "ids": [vocabulary.ids[name]], "tokens": [vocabulary.text_of(name)]}
        for name in {*first, *last}
    ]
    second = [f"{each}:1" for each in (*first, "$B", *last)]
    return processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *second],
        special_tokens=special,
    )
