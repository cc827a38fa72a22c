# SPDX-License-Identifier: Apache-2.0
"""The line on a terminal that shows the progress of offline generation."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_DRAW_SECONDS = 0.1


class ProgressLine:
    """Prompts done and tokens per second, on a terminal only."""

    def __init__(self, total: int, show: bool, stream: TextIO | None = None) -> None:
        self.prompts = self.tokens = 0
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._show = show and self._stream.isatty()
        self._began = self._drawn = time.monotonic()

    def draw(self) -> None:
        """Draw the line, unless that was done a moment ago."""
        now = time.monotonic()
        if self._show and now - self._drawn > _DRAW_SECONDS:
            self._drawn = now
            rate = self.tokens / (now - self._began)
            self._stream.write(
                f"\r\x1b[K{self.prompts}/{self._total} prompts, {self.tokens} tokens, {rate:.1f}/s"
            )
            self._stream.flush()

    def clear(self) -> None:
        """Erase the progress line from the terminal."""
        if self._show:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
