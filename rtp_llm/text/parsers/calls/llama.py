# SPDX-License-Identifier: Apache-2.0
"""Llama 3 and 4: JSON objects without markers around them, or after a tag."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer
from rtp_llm.text.parsers.calls.json_calls import json_call
from rtp_llm.text.parsers.source import Malformed, Markers, Steps


@dataclass(frozen=True)
class LlamaJson:
    """`open`, then `{"name": N, "parameters": {...}}`, with more objects after semicolons.

    Without the tag they are calls only at the beginning of the answer, and only of declared tools:
    the answer may be JSON by itself.
    """

    open: str
    close: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.open, self.close) if self.close else (self.open,)

    def read(self, answer: Answer) -> Steps[None]:
        source = answer.source
        try:
            yield from source.spaces()
            if (yield from source.peek()) == "{":
                yield from self._calls(answer, bare=True)
        except Malformed:
            yield answer.give_up()
        triggers = Markers.of(self.open, *MESSAGE_ENDS)
        while True:
            yield from answer.text(triggers)
            try:
                yield from source.spaces()
                yield from self._calls(answer, bare=False)
                if (yield from source.closing(self.close)):
                    answer.end_call()
            except Malformed:
                yield answer.give_up()

    def _calls(self, answer: Answer, *, bare: bool) -> Steps[None]:
        source = answer.source
        more = True
        while more:
            yield from json_call(answer, bare=bare)
            yield from source.spaces()
            if (yield from source.literal(";")):
                yield from source.spaces()
            more = (yield from source.peek()) == "{"
