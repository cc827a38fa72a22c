# SPDX-License-Identifier: Apache-2.0
"""Token ids to text, piece by piece, never cutting a character.

A prompt may end inside a character. If the answer finishes it, the character belongs to the
answer; if not, its bytes belong to the prompt and the answer shows nothing of them.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from rtp_llm.text.token_bytes import TokenBytes

# Number of ids before the answer that affect how its first characters are decoded.
CONTEXT_LENGTH = 8
# Number of recent ids that the fallback decodes again with each token.
WINDOW = 16
REPLACEMENT = "\ufffd"
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """What `feed` returns, joined, followed by the result of `flush`, is the text of all ids."""

    def feed(self, token_ids: Iterable[int]) -> str:
        """Return the text completed by these ids; an unfinished character is held back."""

    def flush(self) -> str:
        """Return the rest at the end, with U+FFFD for a character that was never finished."""


class ByteDetokenizer:
    """For tokenizers that decode by concatenating bytes (see token_bytes.py)."""

    def __init__(
        self, table: TokenBytes, hidden: Collection[int], context: Sequence[int] = ()
    ) -> None:
        self._table = table
        self._hidden = hidden
        self._decoder = _Utf8Decoder(errors="replace")
        self._at_start = table.style.start != "keep"
        self._unfinished = b""
        self.feed(context[-CONTEXT_LENGTH:])
        # Of a character in which the context ends, until the first byte that follows.
        self._unfinished = self._decoder.getstate()[0]
        if len(context) > CONTEXT_LENGTH:
            self._at_start = False

    def feed(self, token_ids: Iterable[int]) -> str:
        """Return the text that these ids complete; see Detokenizer."""
        table, hidden = self._table, self._hidden
        if self._at_start:
            return self._decoder.decode(self._feed_start(token_ids))
        data = b"".join([table[token] for token in token_ids if token not in hidden])
        if self._unfinished and data:
            self._leave_to_context(data[:1])
        return self._decoder.decode(data)

    def _leave_to_context(self, first: bytes) -> None:
        """Forget the context's unfinished character unless the byte ``first`` continues it."""
        try:
            _Utf8Decoder().decode(self._unfinished + first)
        except UnicodeDecodeError:
            self._decoder.reset()
        self._unfinished = b""

    def _feed_start(self, token_ids: Iterable[int]) -> bytes:
        visible = [token for token in token_ids if token not in self._hidden]
        start = b""
        while self._at_start and visible:
            start = self._first_bytes(visible.pop(0))
        return start + b"".join([self._table[token] for token in visible])

    def _first_bytes(self, token_id: int) -> bytes:
        if self._table.style.start == "drop_marks":
            first = self._table.first(token_id)
            self._at_start = first is None
            return first or b""
        data = self._table[token_id]
        self._at_start = not data
        return data[1:] if data.startswith(b" ") else data

    def flush(self) -> str:
        """Return the rest of the text; see Detokenizer."""
        if self._unfinished:
            self._decoder.reset()
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other tokenizer: decodes a window of recent ids and takes the difference."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        hidden: Collection[int],
        context: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._hidden = hidden
        self._ids = [token for token in context[-CONTEXT_LENGTH:] if token not in hidden]
        # ids[:read] are out as text; ids[prefix:read] are decoded again to place spaces right.
        self._prefix = 0
        self._read = len(self._ids)

    def feed(self, token_ids: Iterable[int]) -> str:
        """Return the text that these ids complete; see Detokenizer."""
        text = ""
        for token in token_ids:
            if token not in self._hidden:
                self._ids.append(token)
                text += self._advance(final=False)
        return text

    def flush(self) -> str:
        """Return the rest of the text; see Detokenizer."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> str:
        before = self._decode(self._ids[self._prefix : self._read])
        after = self._decode(self._ids[self._prefix :])
        if after.endswith(REPLACEMENT) and not final:
            return ""
        self._read = len(self._ids)
        self._prefix = max(0, self._read - WINDOW)
        if before.endswith(REPLACEMENT):  # the context's last character: finished now, or not
            return after[_common_length(before, after) :]
        return after[len(before) :]


def _common_length(first: str, second: str) -> int:
    """Length of the common prefix of two strings."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
