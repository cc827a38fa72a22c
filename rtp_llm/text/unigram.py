# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a folder that has sentencepiece.bpe.model and no tokenizer.json: XLM-RoBERTa's.

Despite its name the file holds a unigram model. Ids are fairseq's: <s>, <pad>, </s> and <unk> come
first, then the pieces of the file without its own <unk>, <s> and </s>, and <mask> is the last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from rtp_llm.model_folder import ModelFilesError, read_bytes

UNIGRAM_MODEL = "sentencepiece.bpe.model"
_CLASSES = (None, "XLMRobertaTokenizer", "XLMRobertaTokenizerFast")
_SPECIAL = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
_UNKNOWN = 3  # the place of <unk> among them
_OWN_PIECES = 3  # at the beginning of the file
_SPACE = "▁"
# Field numbers of the protocol buffers in sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE = 1, 2
_MODEL_TYPE, _UNIGRAM = 3, 1
_CHARACTER_MAP = 2

_Value = int | bytes


def read_unigram(
    folder: Path, config: Mapping[str, Any], special: Mapping[str, str]
) -> tokenizers.Tokenizer:
    """Build the tokenizer of sentencepiece.bpe.model as transformers does.

    `config` is tokenizer_config.json, `special` has the tokens that the folder names.
    Raises ModelFilesError for a file that cannot be read or is another kind of model, and for a
    tokenizer class with other ids.
    """
    file = folder / UNIGRAM_MODEL
    if (given := config.get("tokenizer_class")) not in _CLASSES:
        raise ModelFilesError(
            f"{file}: the ids of {given} are not known here. Convert it once with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    try:
        pieces, characters = _read_model(read_bytes(file))
    except (IndexError, UnicodeDecodeError, ValueError, struct.error) as error:
        raise ModelFilesError(f"{file} is no unigram model of sentencepiece: {error}") from error
    first, padding, last, unknown, mask = (special.get(name, _SPECIAL[name]) for name in _SPECIAL)
    vocabulary = [*((each, 0.0) for each in (first, padding, last, unknown)), *pieces, (mask, 0.0)]
    return make_unigram(vocabulary, special, _UNKNOWN, characters)


def make_unigram(
    vocabulary: Sequence[tuple[str, float]],
    special: Mapping[str, str],
    unknown_id: int,
    characters: bytes,
) -> tokenizers.Tokenizer:
    """Build XLM-RoBERTa's tokenizer of pieces and their scores, in the order of ids.

    `special` names the special tokens where they are not the usual ones; `characters`: the map of
    sentencepiece's normalizer, or nothing. Raises ValueError for a map that cannot be read.
    """
    backend = tokenizers.Tokenizer(
        models.Unigram([*vocabulary], unk_id=unknown_id, byte_fallback=False)
    )
    if characters:
        backend.normalizer = normalizers.Precompiled(characters)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(_SPACE, "always")]
    )
    backend.decoder = decoders.Metaspace(_SPACE, "always")
    names = {key: special.get(key, text) for key, text in _SPECIAL.items()}
    first, last, mask = (names[key] for key in ("bos_token", "eos_token", "mask_token"))
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(each, special=True, lstrip=each == mask)
            for each in names.values()
            if backend.token_to_id(each) is not None
        ]
    )
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} {last} $B {last}",
        special_tokens=[(each, backend.token_to_id(each)) for each in (first, last)],
    )
    return backend


def _read_model(content: bytes) -> tuple[list[tuple[str, float]], bytes]:
    """The pieces with their scores, without the file's own special ones, and the map of characters
    of its normalizer."""
    pieces: list[tuple[str, float]] = []
    kind: _Value = _UNIGRAM
    characters = b""
    for number, value in _fields(content):
        if not isinstance(value, bytes):
            continue
        if number == _PIECES:
            fields = dict(_fields(value))
            text, score = fields.get(_PIECE, b""), fields.get(_SCORE, bytes(4))
            if not isinstance(text, bytes) or not isinstance(score, bytes):
                raise ValueError("a piece has no text or no score")
            pieces.append((text.decode(), *struct.unpack("<f", score)))
        elif number == _TRAINER:
            kind = next((each for at, each in _fields(value) if at == _MODEL_TYPE), kind)
        elif number == _NORMALIZER:
            found = dict(_fields(value)).get(_CHARACTER_MAP, b"")
            characters = found if isinstance(found, bytes) else b""
    if kind != _UNIGRAM:
        raise ValueError(f"model_type is {kind!r}")
    if len(pieces) <= _OWN_PIECES:
        raise ValueError("it has no pieces")
    return pieces[_OWN_PIECES:], characters


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
