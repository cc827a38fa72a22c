# SPDX-License-Identifier: Apache-2.0
"""BPE of sentencepiece: by scores, the model that GGUF calls llama, or by merges, gemma4."""

from __future__ import annotations

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from rtp_llm.gguf.tokens import BYTE, NORMAL, PREFIX
from rtp_llm.text.gguf.merges import merges_of
from rtp_llm.text.gguf.vocabulary import Vocabulary
from rtp_llm.text.sentencepiece_bpe import make_sentencepiece_bpe, merges_by_score

_NUM_BYTES = 256


def sentencepiece_bpe(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Build the tokenizer, without its special tokens. Raises GgufError."""
    return _bpe(vocabulary, _merges(vocabulary), prefix=True)


def gemma_bpe(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The same by merges of the file, which never join a line break to anything else."""
    backend = _bpe(vocabulary, merges_of(vocabulary, vocabulary.numbered()), prefix=False)
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("\n+"), "isolated")
    return backend


def _bpe(
    vocabulary: Vocabulary, merges: list[tuple[str, str]], *, prefix: bool
) -> tokenizers.Tokenizer:
    """``prefix``: texts get a space in front unless the file says otherwise."""
    unknown = vocabulary.text_of("unknown")
    falls_back = len(vocabulary.of_kind(BYTE)) == _NUM_BYTES
    if unknown is None and not falls_back:
        raise vocabulary.error(f"it has neither {PREFIX}unknown_token_id nor a token of each byte")
    prefixed = vocabulary.flag("add_space_prefix", prefix)
    numbers = vocabulary.numbered()
    return make_sentencepiece_bpe(numbers, merges, unknown, falls_back=falls_back, prefix=prefixed)


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Merges of the normal tokens, the best scores first."""
    scores = vocabulary.metadata.numbers(PREFIX + "scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise vocabulary.error(f"{PREFIX}scores must have one number for each token")
    if not np.isfinite(scores).all():
        raise vocabulary.error(f"{PREFIX}scores must be finite numbers")
    normal = np.flatnonzero(vocabulary.kinds == NORMAL)
    best_first = normal[np.argsort(-scores[normal].astype(np.float64), kind="stable")]
    return merges_by_score(vocabulary.tokens[number] for number in best_first)
