# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a folder that has tiktoken.model and no tokenizer.json: Kimi-K2's byte BPE."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rtp_llm.model_folder import ModelFilesError, read_bytes, shown
from rtp_llm.text.added_tokens import add_tokens
from rtp_llm.text.gguf.pre_tokenizers import PRE_TOKENIZERS
from rtp_llm.text.ranked_bpe import byte_letters, check_ranks, cut_by, ranked_bpe

TIKTOKEN_MODEL = "tiktoken.model"
# How the tokenizer classes of models' own code cut texts, by the names of PRE_TOKENIZERS.
_CUTS = {"TikTokenTokenizer": "kimi-k2"}
_MAX_TOKENS = 1 << 20


def read_tiktoken(folder: Path, config: Mapping[str, Any], special: Mapping[str, str]) -> Any:
    """Build the tokenizer: ids are ranks, then those of special tokens in `config`.

    `config` is tokenizer_config.json. Raises ModelFilesError for a class whose cuts are not known
    here, and for a broken file.
    """
    file, name = folder / TIKTOKEN_MODEL, config.get("tokenizer_class")
    if name not in _CUTS:
        raise ModelFilesError(
            f"{file}: how {shown(name)} cuts texts is not known here (known: {', '.join(_CUTS)}). "
            "Convert it once (pip install transformers tiktoken): transformers."
            'convert_slow_tokenizer.TikTokenConverter(f"{folder}/tiktoken.model", pattern=PATTERN, '
            'extra_special_tokens=TOKENS).converted().save(f"{folder}/tokenizer.json"), with the '
            "pattern and the special tokens, in the order of their ids, of the model's own "
            "tokenization_*.py."
        )
    try:
        ranks = _ranks(read_bytes(file))
    except (ValueError, binascii.Error) as error:
        raise ModelFilesError(f"{file}: {error}") from error
    numbers = {byte_letters(token): rank for token, rank in ranks.items()}
    (pattern,) = PRE_TOKENIZERS[_CUTS[name]].patterns
    backend = ranked_bpe(ranks, numbers, cut_by(pattern))
    add_tokens(backend, folder, config)
    return backend


def _ranks(content: bytes) -> dict[bytes, int]:
    """The rank of each token: a line has a token in base64, and its rank."""
    ranks: dict[bytes, int] = {}
    lines = content.splitlines()
    for place, line in enumerate(lines):
        token, _, rank = line.partition(b" ")
        if rank != str(place).encode() or place >= _MAX_TOKENS:
            raise ValueError(f"line {place + 1} must have a token and the rank {place}")
        ranks[base64.b64decode(token, validate=True)] = place
    check_ranks(ranks, len(lines))
    return ranks
