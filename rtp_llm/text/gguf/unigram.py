# SPDX-License-Identifier: Apache-2.0
"""XLM-RoBERTa's unigram model in a GGUF file, which calls the kind t5."""

from __future__ import annotations

import numpy as np
import tokenizers

from rtp_llm.gguf.tokens import PREFIX
from rtp_llm.text.gguf.vocabulary import Vocabulary
from rtp_llm.text.unigram import make_unigram

_NAMES = {
    "bos_token": "bos",
    "pad_token": "padding",
    "eos_token": "eos",
    "unk_token": "unknown",
    "mask_token": "mask",
}
_CHARACTERS = PREFIX + "precompiled_charsmap"


def unigram(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Build the tokenizer with its special tokens. Raises GgufError."""
    special = {
        key: text for key, name in _NAMES.items() if (text := vocabulary.text_of(name)) is not None
    }
    for key in ("bos", "eos", "unknown"):
        if key not in vocabulary.ids:
            raise vocabulary.error(f"{PREFIX}{key}_token_id is missing")
    scores = vocabulary.metadata.numbers(PREFIX + "scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise vocabulary.error(f"{PREFIX}scores must have one number for each token")
    if not np.isfinite(scores).all():
        raise vocabulary.error(f"{PREFIX}scores must be finite numbers")
    found = vocabulary.metadata.numbers(_CHARACTERS)
    characters = b"" if found is None else found.astype(np.uint8).tobytes()
    pieces = [*zip(vocabulary.tokens, scores.tolist(), strict=True)]
    try:
        return make_unigram(pieces, special, vocabulary.ids["unknown"], characters)
    except Exception as error:  # of the library, which has no class of its own
        raise vocabulary.error(f"its unigram model cannot be read: {error}") from error
