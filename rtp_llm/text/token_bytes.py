# SPDX-License-Identifier: Apache-2.0
"""The bytes that each token id stands for, read from the decoder of a tokenizer.

Covers the two families of today's models that decode by concatenating bytes: byte-level
BPE (GPT-2, Llama-3, Qwen) and metaspace with byte fallback (sentencepiece: Llama-2, Mistral,
Gemma). Other decoders (WordPiece, ...) have no such table.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


@dataclass(frozen=True)
class DecoderStyle:
    """How a decoder turns tokens into text.

    `mark` stands for a space ("" in byte-level BPE); `start` says what happens to spaces at the
    very beginning: kept, one stripped, or every mark of the first token dropped.
    """

    family: Literal["byte_level", "metaspace"]
    mark: str = ""
    byte_fallback: bool = False
    start: Literal["keep", "strip_one", "drop_marks"] = "keep"


def decoder_style(tokenizer: tokenizers.Tokenizer) -> DecoderStyle | None:
    """The style of the tokenizer's decoder; None when it is of neither family."""
    if tokenizer.decoder is None:
        return None
    parts = _flatten(json.loads(tokenizer.decoder.__getstate__()))
    names = [part["type"] for part in parts]
    if names == ["ByteLevel"]:
        return DecoderStyle("byte_level")
    if names == ["Metaspace"]:
        never = parts[0].get("prepend_scheme") == "never"
        return DecoderStyle(
            "metaspace", parts[0]["replacement"], start="keep" if never else "drop_marks"
        )
    if names[:3] == ["Replace", "ByteFallback", "Fuse"]:
        return _sentencepiece_style(parts)
    return None


def _sentencepiece_style(parts: list[dict[str, Any]]) -> DecoderStyle | None:
    replace, strips = parts[0], parts[3:]
    mark = replace["pattern"].get("String")
    if mark is None or replace["content"] != " ":
        return None
    if not strips:
        return DecoderStyle("metaspace", mark, byte_fallback=True)
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    if strips == [strip]:
        return DecoderStyle("metaspace", mark, byte_fallback=True, start="strip_one")
    return None


def _flatten(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [part for inner in decoder["decoders"] for part in _flatten(inner)]


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: character -> byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in set(plain))
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_level_alphabet()
# By the byte.
BYTE_LETTERS = {byte: letter for letter, byte in _ALPHABET.items()}


class TokenBytes(dict[int, bytes]):
    """Token id -> its bytes, filled on first use. Unknown ids are empty.

    A dictionary, because it is looked into for every token of every stream.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, style: DecoderStyle) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self.style = style

    def __missing__(self, token_id: int) -> bytes:
        data = self[token_id] = self._compute(token_id)
        return data

    def first(self, token_id: int) -> bytes | None:
        """The bytes of a token that stands at the very beginning (style.start is "drop_marks").

        None for an unknown id: the token after it is the first one.
        """
        token = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
        return None if token is None else token.replace(self.style.mark, "").encode()

    def _compute(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self.style.family == "byte_level":
            try:
                return bytes([_ALPHABET[character] for character in token])
            except KeyError:
                return token.encode()
        match = _BYTE_TOKEN.match(token) if self.style.byte_fallback else None
        if match:
            return bytes([int(match.group(1), 16)])
        return token.replace(self.style.mark, " ").encode()
