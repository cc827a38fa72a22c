# SPDX-License-Identifier: Apache-2.0
"""Reads a model file of sentencepiece: pieces, their scores and kinds, and its normalizer.

The file is the protocol buffer ModelProto of sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rtp_llm.model_folder import ModelFilesError, read_bytes

# What a model is, and kinds of pieces.
UNIGRAM, BPE = "unigram", "bpe"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_KINDS = {1: UNIGRAM, 2: BPE, 3: "word", 4: "char"}
# Field numbers.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _PIECE_KIND = 1, 2, 3
_MODEL_TYPE = 3
_CHARACTER_MAP, _DUMMY_PREFIX, _REMOVE_SPACES = 2, 3, 4

_MAX_BITS = 70  # of an integer, 7 to a byte

_Value = int | bytes


@dataclass(frozen=True)
class Piece:
    """A token: its text, with ▁ (U+2581) for a space, its score and its kind."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencepieceModel:
    """`kind` is "unigram", "bpe", ...; `characters`: the map of the normalizer, or nothing.

    `adds_prefix`: texts get a space in front; `removes_spaces`: those at their ends are dropped,
    and of several in a row one is kept.
    """

    kind: str
    pieces: tuple[Piece, ...]
    characters: bytes
    adds_prefix: bool
    removes_spaces: bool


def read_sentencepiece(file: Path) -> SentencepieceModel:
    """Read a model file; raises ModelFilesError if it cannot be read as one."""
    try:
        return _read(read_bytes(file))
    except (IndexError, UnicodeDecodeError, ValueError, struct.error) as error:
        raise ModelFilesError(f"{file} is no model of sentencepiece: {error}") from error


def _read(content: bytes) -> SentencepieceModel:
    pieces: list[Piece] = []
    kind: _Value = 1
    normalizer: dict[int, _Value] = {}
    for number, value in _fields(content):
        if not isinstance(value, bytes):
            continue
        if number == _PIECES:
            pieces.append(_piece(dict(_fields(value))))
        elif number == _TRAINER:
            kind = next((each for at, each in _fields(value) if at == _MODEL_TYPE), kind)
        elif number == _NORMALIZER:
            normalizer = dict(_fields(value))
    if kind not in _KINDS:
        raise ValueError(f"model_type is {kind!r}")
    if not pieces:
        raise ValueError("it has no pieces")
    characters = normalizer.get(_CHARACTER_MAP, b"")
    return SentencepieceModel(
        _KINDS[kind],
        tuple(pieces),
        characters if isinstance(characters, bytes) else b"",
        bool(normalizer.get(_DUMMY_PREFIX, True)),
        bool(normalizer.get(_REMOVE_SPACES, True)),
    )


def _piece(fields: dict[int, _Value]) -> Piece:
    text, score = fields.get(_TEXT, b""), fields.get(_SCORE, bytes(4))
    kind = fields.get(_PIECE_KIND, NORMAL)
    if not (isinstance(text, bytes) and isinstance(score, bytes) and isinstance(kind, int)):
        raise ValueError("a piece has no text, no score or no kind")
    (number,) = struct.unpack("<f", score)
    return Piece(text.decode(), number, kind)


def _fields(content: bytes) -> Iterator[tuple[int, _Value]]:
    """(number, value) of the fields of a protocol buffer: an integer, or bytes."""
    at, end = 0, len(content)
    while at < end:
        tag, at = _varint(content, at)
        match tag & 7:
            case 0:
                number, at = _varint(content, at)
                yield tag >> 3, number
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(content, at)
            case 5:
                size = 4
            case other:
                raise ValueError(f"a field has the wire type {other}")
        if at + size > end:
            raise ValueError("it is cut off")
        yield tag >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """An integer, and where it ends."""
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift >= _MAX_BITS:
            raise ValueError("an integer has more than 64 bits")
