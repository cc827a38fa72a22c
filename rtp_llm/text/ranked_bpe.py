# SPDX-License-Identifier: Apache-2.0
"""Byte BPE by ranks, as tiktoken has it: of two neighbours those that make the lowest rank join."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from rtp_llm.model_folder import shown
from rtp_llm.text.token_bytes import BYTE_LETTERS

_MAX_BYTES = 1024  # of a token, each of whose divisions in two is looked at


def ranked_bpe(ranks: Mapping[bytes, int], numbers: dict[str, int], cut: Any) -> Any:
    """Build the tokenizer of tokens with their `ranks`; `numbers` has their ids by their letters.

    `cut`: what cuts texts before that, of cut_by().
    """
    merges = [(byte_letters(first), byte_letters(second)) for first, second in _merges(ranks)]
    backend = tokenizers.Tokenizer(models.BPE(numbers, merges, ignore_merges=True))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, level])
    backend.decoder = decoders.ByteLevel()
    return backend


def check_ranks(ranks: Mapping[bytes, int], count: int) -> None:
    """Raise ValueError unless `ranks` has each byte, and `count` tokens of a possible length."""
    for token, rank in ranks.items():
        if not 0 < len(token) <= _MAX_BYTES:
            raise ValueError(f"token {rank} has {len(token)} bytes, not 1 to {_MAX_BYTES}")
    if len(ranks) < count or any(bytes((byte,)) not in ranks for byte in range(256)):
        raise ValueError("vocab must have each byte, and no token twice")


def cut_by(pattern: str) -> Any:
    """Cuts texts into what the pattern matches. Raises ValueError for a broken pattern."""
    try:
        return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    except Exception as error:  # of the library, which has no class of its own
        raise ValueError(f"pattern {shown(pattern)}: {error}") from error


def byte_letters(token: bytes) -> str:
    """A token as byte-level BPE spells it, a letter for each byte."""
    return "".join(map(BYTE_LETTERS.__getitem__, token))


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """All pairs of tokens that make a token, by the rank of what they make."""
    for token in sorted(ranks, key=ranks.__getitem__):
        halves = ((token[:at], token[at:]) for at in range(1, len(token)))
        known = [(a, b) for a, b in halves if a in ranks and b in ranks]
        yield from sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
