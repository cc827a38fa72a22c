# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a folder that has tokenizer.model and no tokenizer.json: sentencepiece's BPE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers

from rtp_llm.model_folder import ModelFilesError, name_of
from rtp_llm.text.added_tokens import add_tokens, begin_and_end
from rtp_llm.text.sentencepiece_model import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    SentencepieceModel,
    read_sentencepiece,
)

TOKENIZER_MODEL = "tokenizer.model"
_SPACE = "▁"
_NUM_BYTES = 256
_CONVERT = (
    "Convert it once with transformers: "
    "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
)
_LONGEST_PIECE = 1024  # letters; each division of a piece in two is looked at


def read_sentencepiece_bpe(
    folder: Path, config: Mapping[str, Any], special: Mapping[str, str]
) -> tokenizers.Tokenizer:
    """Build the tokenizer of tokenizer.model (Llama 2, Mistral).

    Ids are the places of pieces; tokens of `config` (tokenizer_config.json) come after them. The
    token that begins texts is put in front of them unless `config` says otherwise. Raises
    ModelFilesError for a file that is no such model or normalises texts in another way.
    """
    file = folder / TOKENIZER_MODEL
    model = read_sentencepiece(file)
    _check(model, file)
    backend = _bpe_of(model, file)
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(each.text, normalized=False, special=True)
            for each in model.pieces
            if each.kind in (CONTROL, UNKNOWN)
        ]
    )
    backend.add_tokens(
        [
            tokenizers.AddedToken(each.text, normalized=False)
            for each in model.pieces
            if each.kind == USER_DEFINED
        ]
    )
    add_tokens(backend, folder, config)
    begin_and_end(
        backend, {"bos_token": "<s>", "eos_token": "</s>", **special}, config, begins=True
    )
    return backend


def _check(model: SentencepieceModel, file: Path) -> None:
    """Raise ModelFilesError for another kind of model, and for what it does besides merging."""
    if model.kind != BPE:
        raise ModelFilesError(f"{file} is no BPE of sentencepiece: it is {model.kind}")
    if model.characters or model.removes_spaces:
        raise ModelFilesError(
            f"{file} normalises characters or spaces, which is not supported. {_CONVERT}"
        )
    if any(each.kind == USER_DEFINED and _SPACE in each.text for each in model.pieces):
        raise ModelFilesError(
            f"{file} has pieces of spaces that are never merged, which is not supported. {_CONVERT}"
        )


def _bpe_of(model: SentencepieceModel, file: Path) -> tokenizers.Tokenizer:
    numbers = {piece.text: number for number, piece in enumerate(model.pieces)}
    if len(numbers) < len(model.pieces):
        twice = next(p.text for at, p in enumerate(model.pieces) if numbers[p.text] != at)
        raise ModelFilesError(f"{file} has the piece {name_of(twice)} more than once")
    normal = [piece for piece in model.pieces if piece.kind == NORMAL]
    if not all(math.isfinite(piece.score) for piece in normal):
        raise ModelFilesError(f"{file}: scores must be finite numbers")
    best_first = [each.text for each in sorted(normal, key=lambda piece: -piece.score)]
    unknown = next((piece.text for piece in model.pieces if piece.kind == UNKNOWN), None)
    falls_back = sum(piece.kind == BYTE for piece in model.pieces) == _NUM_BYTES
    if unknown is None and not falls_back:
        raise ModelFilesError(f"{file} has neither an unknown piece nor one of each byte")
    if any(len(piece.text) > _LONGEST_PIECE for piece in model.pieces):
        raise ModelFilesError(f"{file} has a piece of more than {_LONGEST_PIECE} letters")
    merges = merges_by_score(best_first)
    return make_sentencepiece_bpe(
        numbers, merges, unknown, falls_back=falls_back, prefix=model.adds_prefix
    )


def make_sentencepiece_bpe(
    numbers: dict[str, int],
    merges: list[tuple[str, str]],
    unknown: str | None,
    *,
    falls_back: bool,
    prefix: bool,
) -> tokenizers.Tokenizer:
    """Build the tokenizer of tokens with their ids, without its special tokens.

    ``falls_back``: characters without a token become bytes; ``prefix``: texts get a space in front.
    """
    backend = tokenizers.Tokenizer(
        models.BPE(numbers, merges, unk_token=unknown, fuse_unk=True, byte_fallback=falls_back)
    )
    marks = normalizers.Replace(" ", _SPACE)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), marks]) if prefix else marks
    )
    parts: list[decoders.Decoder] = [
        decoders.Replace(_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if prefix:
        parts.append(decoders.Strip(" ", left=1))
    backend.decoder = decoders.Sequence(parts)
    return backend


def merges_by_score(best_first: Iterable[str]) -> list[tuple[str, str]]:
    """Every way to put one of the tokens together of two others, the best token's first.

    Of one token's ways those with the longer first half come first, as in the files that
    transformers writes.
    """
    tokens = [*best_first]
    there = set(tokens)
    return [
        (token[:cut], token[cut:])
        for token in tokens
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in there and token[cut:] in there
    ]
