# SPDX-License-Identifier: Apache-2.0
"""WordPiece, the model that GGUF calls bert: its tokens mark where a word begins, by ▁, instead of
where one goes on, by ##."""

from __future__ import annotations

import tokenizers

from rtp_llm.gguf.tokens import NORMAL, PREFIX
from rtp_llm.text.gguf.vocabulary import Vocabulary
from rtp_llm.text.wordpiece import make_wordpiece

_START, _CONTINUED = "▁", "##"


def wordpiece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Build the tokenizer with its special tokens. Raises GgufError."""
    names = {
        key: text
        for key, name in (
            ("unk_token", "unknown"),
            ("sep_token", "seperator"),
            ("pad_token", "padding"),
            ("mask_token", "mask"),
            ("cls_token", "cls" if "cls" in vocabulary.ids else "bos"),
        )
        if (text := vocabulary.text_of(name)) is not None
    }
    lower = vocabulary.flag("normalizer.lowercase", not _has_capitals(vocabulary))
    config = {
        "do_lower_case": lower,
        "strip_accents": vocabulary.flag("normalizer.strip_accents", lower),
    }
    return make_wordpiece(_spelled(vocabulary), config, names, vocabulary.metadata.file)


def _spelled(vocabulary: Vocabulary) -> dict[str, int]:
    """Token as BERT spells it -> id."""
    found: dict[str, int] = {}
    for number, token in enumerate(vocabulary.tokens):
        if token.startswith(_START):
            spelled = token.removeprefix(_START)
        elif vocabulary.kinds[number] == NORMAL and not _in_brackets(token):
            spelled = _CONTINUED + token
        else:
            spelled = token
        if spelled in found:
            raise vocabulary.error(f"{PREFIX}tokens {found[spelled]} and {number} are the same")
        found[spelled] = number
    return found


def _in_brackets(token: str) -> bool:
    """Whether it is spelled like [MASK]; such tokens have no mark whatever their type."""
    return token.startswith("[") and token.endswith("]")


def _has_capitals(vocabulary: Vocabulary) -> bool:
    """Whether any word has an English capital: no text in small letters would ever have that."""
    return any(
        token != token.lower() and token.isascii()
        for token in (each.removeprefix(_START) for each in vocabulary.of_kind(NORMAL))
        if not _in_brackets(token)
    )
