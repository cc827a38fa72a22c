# SPDX-License-Identifier: Apache-2.0
"""Mistral: `[TOOL_CALLS]`, then an array of calls, or a name and the arguments."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer, clean_name
from rtp_llm.text.parsers.calls import json_text
from rtp_llm.text.parsers.calls.json_calls import calls_in_array
from rtp_llm.text.parsers.source import Malformed, Markers, Steps

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


@dataclass(frozen=True)
class MistralCalls:
    """`[TOOL_CALLS][{"name": N, "arguments": {...}}, ...]`, or from the eleventh tokenizer on
    `[TOOL_CALLS]N[ARGS]{...}` for each call, some with `[CALL_ID]` and an id before `[ARGS]`.
    """

    markers: tuple[str, ...] = (_CALLS, _ID, _ARGUMENTS)

    def read(self, answer: Answer) -> Steps[None]:
        triggers = Markers.of(_CALLS, *MESSAGE_ENDS)
        while True:
            yield from answer.text(triggers)
            try:
                yield from answer.source.spaces()
                if (yield from answer.source.peek()) == "[":
                    yield from calls_in_array(answer)
                else:
                    yield from self._call(answer)
            except Malformed:
                yield answer.give_up()

    def _call(self, answer: Answer) -> Steps[None]:
        source = answer.source
        text, end = yield from source.text_before(Markers.of(_ID, _ARGUMENTS, "{", "\n"))
        name, id = clean_name(text), ""
        if end == _ID:
            id, end = yield from source.text_before(Markers.of(_ARGUMENTS, "\n"))
        if end == "\n":
            raise Malformed
        if end == "{":
            source.unread_last()
        yield from source.spaces()
        if (yield from source.peek()) not in ("{", ""):
            raise Malformed
        yield answer.begin(name, id.strip())
        yield from json_text.nested(source, answer.arguments)
        answer.end_call()
