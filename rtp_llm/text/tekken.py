# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a folder that has tekken.json and no tokenizer.json: Mistral's byte BPE."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from rtp_llm.model_folder import ModelFilesError, read_json, shown
from rtp_llm.text.ranked_bpe import byte_letters, check_ranks, cut_by, ranked_bpe

TEKKEN = "tekken.json"
# What Mistral calls them, where tokenizer_config.json does not.
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
# Of files that do not name them, by their numbers.
_OLD = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
_MAX_TOKENS = 1 << 20


def read_tekken(folder: Path, config: Mapping[str, Any], special: Mapping[str, str]) -> Any:
    """Build the tokenizer: special tokens have the first numbers, bytes and their merges the rest.

    It puts the token that begins texts in front of them. Raises ModelFilesError.
    """
    file = folder / TEKKEN
    content = read_json(file, required=True)
    try:
        names, ranks = _tokens(content)
        cut = cut_by(content["config"]["pattern"])
    except (ArithmeticError, LookupError, TypeError, ValueError, binascii.Error) as error:
        raise ModelFilesError(f"{file}: {type(error).__name__}: {error}") from error
    numbers = {name: number for number, name in enumerate(names)}
    numbers |= {byte_letters(token): len(names) + rank for token, rank in ranks.items()}
    backend = ranked_bpe(ranks, numbers, cut)
    backend.add_special_tokens(
        [tokenizers.AddedToken(name, normalized=False, special=True) for name in names]
    )
    begin = special.get("bos_token", SPECIAL["bos_token"])
    if begin in numbers:
        backend.post_processor = processors.TemplateProcessing(
            single=["bos", "$A"],
            pair=["bos", "$A", "bos:1", "$B:1"],
            special_tokens=[{"id": "bos", "ids": [numbers[begin]], "tokens": [begin]}],
        )
    return backend


def _tokens(content: Mapping[str, Any]) -> tuple[list[str], dict[bytes, int]]:
    """Special tokens in order, and the ranks of all others."""
    config = content["config"]
    names = _special(content.get("special_tokens"))
    count = config.get("default_num_special_tokens") or len(names)
    size = config.get("default_vocab_size") or len(content["vocab"]) + count
    if not len(names) <= count <= size <= _MAX_TOKENS:
        raise ValueError(f"{shown(size)} tokens, of which {shown(count)} are special")
    names += [f"<SPECIAL_{number}>" for number in range(len(names), count)]
    if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise ValueError("special_tokens must be different texts")
    ranks = _ranks(content["vocab"][: size - count])
    if twice := sorted(set(names).intersection(map(byte_letters, ranks))):
        raise ValueError(f"special_tokens and vocab both have {shown(twice[0])}")
    return names, ranks


def _special(listed: Sequence[Mapping[str, Any]] | None) -> list[Any]:
    """The texts of special tokens by rank."""
    if listed is None:
        return list(_OLD)
    in_order = sorted(listed, key=lambda entry: entry["rank"])
    if [entry["rank"] for entry in in_order] != [*range(len(in_order))]:
        raise ValueError("special_tokens must have the ranks from 0 on")
    return [entry["token_str"] for entry in in_order]


def _ranks(vocab: Sequence[Mapping[str, Any]]) -> dict[bytes, int]:
    """The rank of each token, which is its place in `vocab`."""
    ranks: dict[bytes, int] = {}
    for rank, each in enumerate(vocab):
        if each["rank"] != rank:
            raise ValueError(f"vocab is not in the order of ranks: {shown(each['rank'])} at {rank}")
        token = base64.b64decode(each["token_bytes"], validate=True)
        ranks[token] = rank
    check_ranks(ranks, len(vocab))
    return ranks
