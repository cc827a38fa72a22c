# SPDX-License-Identifier: Apache-2.0
"""The tokenizers of `vocabularies` once more, made by transformers or one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import CohereTokenizer, GPT2Tokenizer, GPTNeoXTokenizer, Qwen2Tokenizer
from transformers.integrations.gguf import gguf_tokenizer_mapping as reader
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from rtp_llm.testing.gguf.sentencepiece_merges import PlainSentencepiece
from rtp_llm.testing.gguf.vocabularies import (
    CONTROLS,
    USER_DEFINED,
    byte_level_values,
    metadata_of,
    scored_pieces,
    sentencepiece_values,
    trained_merges,
)
from rtp_llm.text.gguf.tokenizer import read_tokenizer

_CLASSES: dict[str, Any] = {
    "qwen2": Qwen2Tokenizer,
    "qwen35": Qwen3_5Tokenizer,
    "gpt-2": GPT2Tokenizer,
    "olmo": GPTNeoXTokenizer,
    "command-r": CohereTokenizer,
}
BYTE_LEVEL = (*_CLASSES, "llama-bpe", "tekken", "gpt-4o", "smollm")
"""Names of `pre` that there are twins of."""


def byte_level_pair(folder: Path, pre: str) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """The tokenizer under test, and transformers' of the same vocabulary."""
    ours = read_tokenizer(metadata_of(folder, byte_level_values(pre)))
    if pre in _CLASSES:
        return ours, _with_added(_CLASSES[pre](vocab=_vocabulary(), merges=_merges())._tokenizer)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "smollm")
    cuts: Any = pre_tokenizers.Digits(individual_digits=True)  # as in StarCoder's tokenizer.json
    if pre != "smollm":
        pattern = tokenizers.Regex(reader.GGUF_PRE_TOKENIZER_SPLITS[pre])
        cuts = pre_tokenizers.Split(pattern, "isolated")
    theirs = tokenizers.Tokenizer(models.BPE(_vocabulary(), _merges()))
    theirs.pre_tokenizer = pre_tokenizers.Sequence([cuts, level])
    theirs.decoder = decoders.ByteLevel()
    return ours, _with_added(theirs)


def sentencepiece_pair(
    folder: Path, prefix: bool
) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer, PlainSentencepiece]:
    """The tokenizer under test, transformers' of the same file, and plain merging by scores."""
    values = sentencepiece_values(add_space_prefix=prefix)
    ours = read_tokenizer(metadata_of(folder, values))
    tokens = values["tokenizer.ggml.tokens"]
    pieces = {
        text: (tokens.index(text), -float(place)) for place, text in enumerate(scored_pieces())
    }
    kept = {text: tokens.index(text) for text in (*CONTROLS, *USER_DEFINED)}
    plain = PlainSentencepiece(pieces, kept, tokens.index("<0x00>"), prefix=prefix)
    _, read, _ = reader.get_gguf_tokenizer(str(folder / "tokenizer.gguf"))
    # The names of architectures with and without the space.
    theirs = reader.convert_gguf_tokenizer("phi3" if prefix else "gemma3", read)[0]
    return ours, theirs, plain


def _vocabulary() -> dict[str, int]:
    tokens, _ = trained_merges()
    return {token: number for number, token in enumerate([*tokens, *USER_DEFINED])}


def _merges() -> list[tuple[str, str]]:
    return [*trained_merges()[1]]


def _with_added(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    backend.add_special_tokens([tokenizers.AddedToken(each, special=True) for each in CONTROLS])
    backend.add_tokens([tokenizers.AddedToken(each, normalized=False) for each in USER_DEFINED])
    return backend
