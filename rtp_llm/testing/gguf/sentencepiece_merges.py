# SPDX-License-Identifier: Apache-2.0
"""BPE by scores as the paper and sentencepiece describe it, one merge at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise


class PlainSentencepiece:
    """`pieces`: normal token -> (id, score); `kept`: texts that are tokens wherever they are -> id;
    `bytes_from`: the id of the token of byte 0, which those of the others follow."""

    def __init__(
        self,
        pieces: Mapping[str, tuple[int, float]],
        kept: Mapping[str, int],
        bytes_from: int,
        *,
        prefix: bool,
    ) -> None:
        self._pieces, self._kept, self._bytes = pieces, kept, bytes_from
        self._prefix = prefix
        self._longest = max(map(len, kept), default=0)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without the first token of a sequence."""
        ids: list[int] = []
        plain = ""
        at = 0
        while at < len(text):
            found = self._kept_at(text, at)
            if not found:
                plain += text[at]
                at += 1
                continue
            ids += [*self._merged(plain), self._kept[found]]
            plain, at = "", at + len(found)
        return ids + self._merged(plain)

    def _kept_at(self, text: str, at: int) -> str:
        """The longest kept token there; empty without one."""
        sizes = range(min(self._longest, len(text) - at), 0, -1)
        return next((text[at : at + n] for n in sizes if text[at : at + n] in self._kept), "")

    def _merged(self, text: str) -> list[int]:
        if not text:
            return []
        symbols = [*((" " if self._prefix else "") + text).replace(" ", "▁")]
        while (best := self._best(symbols)) is not None:
            symbols[best : best + 2] = ["".join(symbols[best : best + 2])]
        return [number for symbol in symbols for number in self._ids(symbol)]

    def _best(self, symbols: Sequence[str]) -> int | None:
        """Where two symbols make the piece of the best score; the first place of several."""
        places = [
            (-self._pieces[pair][1], at)
            for at, pair in enumerate(map("".join, pairwise(symbols)))
            if pair in self._pieces
        ]
        return min(places)[1] if places else None

    def _ids(self, symbol: str) -> list[int]:
        if symbol in self._pieces:
            return [self._pieces[symbol][0]]
        return [self._bytes + byte for byte in symbol.encode()]
