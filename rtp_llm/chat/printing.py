# SPDX-License-Identifier: Apache-2.0
"""Prints answers as they arrive; reasoning is dim on a terminal and omitted elsewhere."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from rtp_llm.client.openai import Delta, OpenAIClient

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
# Control characters with which a text could manipulate the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass
class Answer:
    """The part of an answer that has arrived."""

    text: str = ""
    finish_reason: str | None = None


class AnswerPrinter:
    """Writes one answer to ``out``, and its reasoning to ``aside`` if that is a terminal."""

    def __init__(self, out: TextIO, aside: TextIO) -> None:
        self._out = out
        self._aside = aside if aside.isatty() else None
        self._thinks = self._began = False
        self._in_line = False

    def show(self, delta: Delta) -> None:
        """Write the text or reasoning that a delta adds."""
        if delta.reasoning and self._aside is not None:
            if not self._thinks:
                self._aside.write(_DIM)
                self._thinks = True
            self._aside.write(_CONTROL.sub("", delta.reasoning))
            self._aside.flush()
        if delta.text:
            self._end_reasoning()
            # Chat templates put line breaks between reasoning and answer.
            shown = delta.text if self._began else delta.text.lstrip("\n")
            if self._out.isatty():
                shown = _CONTROL.sub("", shown)
            if shown:
                self._began, self._in_line = True, not shown.endswith("\n")
            self._out.write(shown)
            self._out.flush()

    def end(self) -> None:
        """End the line; also after an interruption."""
        self._end_reasoning()
        if self._in_line:
            self._out.write("\n")
            self._out.flush()

    def _end_reasoning(self) -> None:
        if self._thinks and self._aside is not None:
            self._aside.write(f"{_PLAIN}\n\n")
            self._aside.flush()
            self._thinks = False


async def print_answer(
    client: OpenAIClient,
    path: str,
    body: Mapping[str, Any],
    printer: AnswerPrinter,
    answer: Answer,
) -> None:
    """Stream the answer to a request into ``answer``, which keeps what arrived even on an error.

    Raises:
        ServerError, OSError: as OpenAIClient.stream.
    """
    try:
        async with contextlib.aclosing(client.stream(path, {**body, "stream": True})) as deltas:
            async for delta in deltas:
                answer.text += delta.text
                answer.finish_reason = delta.finish_reason or answer.finish_reason
                printer.show(delta)
    finally:
        client.close()
        printer.end()
