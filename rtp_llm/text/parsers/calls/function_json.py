# SPDX-License-Identifier: Apache-2.0
"""Functionary 3.1, and Llama 3.1's custom functions: a tag with the name around JSON."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer
from rtp_llm.text.parsers.calls import json_text
from rtp_llm.text.parsers.calls.xml_calls import word
from rtp_llm.text.parsers.source import Malformed, Markers, Steps

_OPEN, _CLOSE = "<function=", "</function>"


@dataclass(frozen=True)
class FunctionJson:
    """Calls written `<function=NAME>{...}</function>`, one after another."""

    markers: tuple[str, ...] = (_OPEN, _CLOSE)

    def read(self, answer: Answer) -> Steps[None]:
        yield from answer.calls(Markers.of(_OPEN, *MESSAGE_ENDS), self._call)

    def _call(self, answer: Answer) -> Steps[None]:
        source = answer.source
        name, _ = yield from word(source, ">")
        yield from source.spaces()
        if (yield from source.peek()) not in ("{", ""):
            raise Malformed
        yield answer.begin(name)
        yield from json_text.nested(source, answer.arguments)
        yield from source.spaces()
        yield from source.expect(_CLOSE)
        answer.end_call()
