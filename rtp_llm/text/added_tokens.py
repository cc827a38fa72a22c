# SPDX-License-Identifier: Apache-2.0
"""Tokens that tokenizer_config.json and added_tokens.json add to a vocabulary file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from rtp_llm.model_folder import ModelFilesError, read_json, shown

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def add_tokens(backend: tokenizers.Tokenizer, folder: Path, config: Mapping[str, Any]) -> None:
    """Add the tokens in the order of their ids, which must follow those of the vocabulary.

    Raises ModelFilesError for a token that is not described as transformers does, or has an id that
    it cannot have.
    """
    for number, (token, file) in sorted(_listed(folder, config).items()):
        backend.add_tokens([token])
        found = backend.token_to_id(token.content)
        if found != number:
            raise ModelFilesError(
                f"{file}: the token {shown(token.content)} has the id {number}, but the vocabulary "
                f"gives it {found}"
            )


def begin_and_end(
    backend: tokenizers.Tokenizer,
    special: Mapping[str, str],
    config: Mapping[str, Any],
    *,
    begins: bool,
) -> None:
    """Put bos_token in front of texts and eos_token after them, where `config` has add_bos_token
    and add_eos_token; without the former ``begins`` decides."""
    first = special.get("bos_token") if config.get("add_bos_token", begins) else None
    last = special.get("eos_token") if config.get("add_eos_token") else None
    there = [each for each in (first, last) if each and backend.token_to_id(each) is not None]
    single = [*there[:1], "$A", *there[1:]] if first in there else ["$A", *there]
    if there:
        backend.post_processor = processors.TemplateProcessing(
            single=single,
            pair=[*single, *(each.replace("$A", "$B") for each in single)],
            special_tokens=[(each, backend.token_to_id(each)) for each in there],
        )


def _listed(
    folder: Path, config: Mapping[str, Any]
) -> dict[int, tuple[tokenizers.AddedToken, Path]]:
    file, more = folder / "tokenizer_config.json", folder / "added_tokens.json"
    found: dict[int, tuple[tokenizers.AddedToken, Path]] = {}
    for text, number in read_json(more).items():
        if not isinstance(number, int):
            raise ModelFilesError(f"{more}: {shown(text)} must have an id; not {shown(number)}")
        found[number] = tokenizers.AddedToken(text, normalized=False), more
    described = config.get("added_tokens_decoder") or {}
    if not isinstance(described, dict):
        raise ModelFilesError(f"{file}: added_tokens_decoder must be an object of ids")
    for key, value in described.items():
        content = value.get("content") if isinstance(value, dict) else None
        if not key.isdecimal() or not isinstance(content, str):
            raise ModelFilesError(
                f"{file}: added_tokens_decoder must have ids and objects with the text content; "
                f"not {shown(key)}: {shown(value)}"
            )
        flags = {name: value[name] for name in _FLAGS if isinstance(value.get(name), bool)}
        found[int(key)] = tokenizers.AddedToken(content, **flags), file
    return found
