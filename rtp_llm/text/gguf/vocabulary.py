# SPDX-License-Identifier: Apache-2.0
"""The vocabulary in the metadata of a GGUF file: tokens, their types, the special ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rtp_llm.gguf import GgufError, Metadata
from rtp_llm.gguf.tokens import PREFIX, read_tokens
from rtp_llm.model_folder import name_of

# llama.cpp's ids of special tokens, for files without their keys.
_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "bert": {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103},
}


@dataclass(frozen=True)
class Vocabulary:
    """`kinds`: int32 [tokens], NORMAL to BYTE; `ids`: of the special tokens, by their names in the
    keys (bos, eos, eot, eom, unknown, seperator, padding, cls, mask)."""

    metadata: Metadata
    model: str
    tokens: list[str]
    kinds: np.ndarray
    ids: dict[str, int]

    def text_of(self, name: str) -> str | None:
        """The text of a special token; None without one."""
        found = self.ids.get(name)
        return None if found is None else self.tokens[found]

    def of_kind(self, *kinds: int) -> list[str]:
        """The tokens of these types."""
        return [self.tokens[each] for each in np.flatnonzero(np.isin(self.kinds, kinds))]

    def numbered(self) -> dict[str, int]:
        """Token -> id; raises GgufError for two of the same text."""
        found = {token: number for number, token in enumerate(self.tokens)}
        if len(found) != len(self.tokens):
            twice = next(each for number, each in enumerate(self.tokens) if found[each] != number)
            raise self.error(f"the token {name_of(twice)} is there more than once")
        return found

    def flag(self, key: str, otherwise: bool) -> bool:
        """A boolean of the tokenizer."""
        found = self.metadata.flag(PREFIX + key)
        return otherwise if found is None else found

    def error(self, what: str) -> GgufError:
        """An error of the file's tokenizer."""
        return GgufError(f"{self.metadata.file}: {what}")


_NAMES = ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask")


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """Read it; raises GgufError for what does not fit together."""
    model = metadata.text(PREFIX + "model")
    tokens = read_tokens(metadata)
    if model is None or tokens is None:
        raise GgufError(f"{metadata.file} has no tokenizer ({PREFIX}model and {PREFIX}tokens)")
    found = Vocabulary(metadata, model, tokens.texts, tokens.kinds, {})
    for name in _NAMES:
        _add_id(found, name)
    return found


def _add_id(vocabulary: Vocabulary, name: str) -> None:
    key, count = f"{PREFIX}{name}_token_id", len(vocabulary.tokens)
    number = vocabulary.metadata.integer(key)
    if number is None:
        number = _DEFAULTS.get(vocabulary.model, {}).get(name)
        if number is None or number >= count:
            return
    elif not 0 <= number < count:
        raise vocabulary.error(f"{key} is {number}, and there are {count} tokens")
    vocabulary.ids[name] = number
