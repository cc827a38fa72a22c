# SPDX-License-Identifier: Apache-2.0
"""A progress bar on a terminal; elsewhere nothing is drawn."""

from __future__ import annotations

import sys
from typing import TextIO

_CELLS = 24
_ERASE = "\r\x1b[K"


class TerminalBar:
    """One line, drawn over and over; ``stream`` None: standard error."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream

    @property
    def on_terminal(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def draw(self, words: str, done: int, total: int, stats: str) -> None:
        """``words [###...] stats`` in place of what the line had."""
        if self.on_terminal:
            filled = _CELLS * done // max(1, total)
            bar = "#" * filled + "." * (_CELLS - filled)
            self._write(f"{_ERASE}{words} [{bar}] {stats}")

    def erase(self) -> None:
        """Leave the line empty for what is printed next."""
        if self.on_terminal:
            self._write(_ERASE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
