# SPDX-License-Identifier: Apache-2.0
"""The merges of a BPE that a GGUF file holds."""

from __future__ import annotations

from rtp_llm.gguf.tokens import PREFIX
from rtp_llm.model_folder import name_of
from rtp_llm.text.gguf.vocabulary import Vocabulary

_MERGES = PREFIX + "merges"


def merges_of(vocabulary: Vocabulary, numbers: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs of tokens that are merged, the first ones first; ``numbers``: the id of each token.

    Raises GgufError without them, and for one that does not make a token of two.
    """
    texts = vocabulary.metadata.texts(_MERGES)
    if texts is None:
        raise vocabulary.error(f"a tokenizer of the kind {vocabulary.model} needs {_MERGES}")
    found = []
    for text in texts:
        at = text.find(" ", 1)
        first, second = text[:at], text[at + 1 :]
        if at < 0 or not (first in numbers and second in numbers and first + second in numbers):
            raise vocabulary.error(
                f"{_MERGES} has {name_of(text)}, which is not two tokens that make a third"
            )
        found.append((first, second))
    return found
