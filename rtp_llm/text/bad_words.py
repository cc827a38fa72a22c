# SPDX-License-Identifier: Apache-2.0
"""Words that must not be generated, as the token sequences that spell them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.text.tokenizer import Tokenizer


def bad_word_ids(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """The token ids of each word, as spelt at the beginning of a text and after a space.

    Raises ValueError for a word that the tokenizer has no tokens for.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        plain = word.lstrip() or word
        spelt = [tuple(tokenizer.encode(text, False)) for text in (plain, f" {plain}")]
        if not all(spelt):
            raise ValueError(f"bad_words: {word!r} has no tokens")
        found.update(dict.fromkeys(spelt))
    return tuple(found)
