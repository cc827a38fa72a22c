# SPDX-License-Identifier: Apache-2.0
"""The tokens in the metadata of a GGUF file, and their types."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from rtp_llm.gguf.cursor import GgufError
from rtp_llm.gguf.metadata import Metadata

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_MANY = 2**24


@dataclass(frozen=True)
class Tokens:
    """`texts` by id, as the tokenizer's model spells them; `kinds` int32 [tokens]: their types."""

    texts: list[str]
    kinds: np.ndarray


def read_tokens(metadata: Metadata) -> Tokens | None:
    """Read them; None for a file without. Raises GgufError for what does not fit together."""
    found = metadata.texts(f"{PREFIX}tokens")
    if found is None:
        return None
    if not 0 < len(found) < _MANY:
        raise GgufError(f"{metadata.file}: {PREFIX}tokens has {len(found)} tokens")
    # As in llama.cpp, an empty token gets a name that no text has.
    texts = [text or f"[EMPTY_{number}]" for number, text in enumerate(found)]
    kinds = metadata.numbers(f"{PREFIX}token_type")
    if kinds is None:
        kinds = np.full(len(texts), NORMAL, np.int32)
    elif len(kinds) != len(texts):
        stated = f"{PREFIX}token_type has {len(kinds)} values for {len(texts)} tokens"
        raise GgufError(f"{metadata.file}: {stated}")
    return Tokens(texts, kinds)


def find_tokens(metadata: Metadata, wanted: Collection[str]) -> dict[str, int]:
    """The ids of the tokens that are spelled as those of `wanted`; without those that are not
    there."""
    texts = metadata.texts(f"{PREFIX}tokens") or ()
    return {text: number for number, text in enumerate(texts) if text in wanted}
