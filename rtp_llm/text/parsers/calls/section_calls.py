# SPDX-License-Identifier: Apache-2.0
"""DeepSeek V3 and V3.1, Kimi K2: a section of calls with special tokens for every border."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer, clean_name
from rtp_llm.text.parsers.calls import json_text
from rtp_llm.text.parsers.calls.section import rest_of_section
from rtp_llm.text.parsers.source import Malformed, Markers, Steps

_NAME_IN_ID = re.compile(r"(?:functions\.)?(.+):\d+")


@dataclass(frozen=True)
class SectionCalls:
    """`open`, then calls `call NAME separator {...} call_end`, then `close`.

    ``fenced``: `call function separator NAME` and the arguments in a code block. ``ids``: in the
    name's place is the call's id, `functions.NAME:INDEX`.
    """

    open: str
    close: str
    call: str
    separator: str
    call_end: str
    fenced: bool = False
    ids: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        return self.open, self.close, self.call, self.separator, self.call_end

    def read(self, answer: Answer) -> Steps[None]:
        yield from answer.calls(Markers.of(self.open, *MESSAGE_ENDS), self._section)

    def _section(self, answer: Answer) -> Steps[None]:
        yield from answer.source.spaces()
        yield from answer.source.expect(self.call)
        yield from rest_of_section(answer, self.call, self.close, self._call)

    def _call(self, answer: Answer) -> Steps[None]:
        source = answer.source
        name, id = yield from self._head(answer)
        yield from source.spaces()
        if (yield from source.peek()) not in ("{", ""):
            raise Malformed
        yield answer.begin(name, id)
        yield from json_text.nested(source, answer.arguments)
        yield from source.spaces()
        if self.fenced:
            yield from source.literal("```")
            yield from source.spaces()
        yield from source.expect(self.call_end)
        answer.end_call()

    def _head(self, answer: Answer) -> Steps[tuple[str, str]]:
        """The name and the id before the arguments."""
        source = answer.source
        text, end = yield from source.text_before(Markers.of(self.separator, "\n"))
        if end != self.separator:
            raise Malformed
        if self.fenced:
            name, _ = yield from source.text_before(Markers.of("\n"))
            yield from source.spaces()
            yield from source.expect("```json")
            return clean_name(name), ""
        name = clean_name(text)
        if self.ids and (found := _NAME_IN_ID.fullmatch(name)):
            return found[1], name
        return name, ""
