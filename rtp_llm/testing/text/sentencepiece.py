# SPDX-License-Identifier: Apache-2.0
"""Writes small model files of sentencepiece."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from rtp_llm.text.sentencepiece_model import UNIGRAM

Piece = tuple[str, float, int]


def field(number: int, value: int | bytes | float) -> bytes:
    """A field of a protocol buffer; its number is below 16."""
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    size = value if isinstance(value, int) else len(value)
    varint = bytes([size & 127 | 128, size >> 7]) if size > 127 else bytes([size])
    return (
        bytes([number << 3 | (0 if isinstance(value, int) else 2)])
        + varint
        + (b"" if isinstance(value, int) else value)
    )


def model_file(pieces: Iterable[Piece], kind: str, *, removes_spaces: bool = False) -> bytes:
    """A model of (text, score, kind) of each piece, without a map of characters."""
    content = b"".join(
        field(1, field(1, text.encode()) + field(2, score) + field(3, what))
        for text, score, what in pieces
    )
    trainer = field(1, b"corpus.txt") + field(3, 1 if kind == UNIGRAM else 2)
    normalizer = field(1, b"identity") + field(3, 1) + field(4, int(removes_spaces))
    return content + field(2, trainer) + field(3, normalizer)
