"""GLM 4.5 and later: a name, then keys and values in tags, with newlines between or without."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer, clean_name
from rtp_llm.text.parsers.calls.arguments import Arguments
from rtp_llm.text.parsers.source import Malformed, Markers, Steps

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


@dataclass(frozen=True)
class GlmCalls:
    """`<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>...</tool_call>`."""

    markers: tuple[str, ...] = (_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)

    def read(self, answer: Answer) -> Steps[None]:
        triggers = Markers.of(_OPEN, *MESSAGE_ENDS)
        while True:
            yield from answer.text(triggers)
            try:
                yield from self._call(answer)
            except Malformed:
                yield answer.give_up()

    def _call(self, answer: Answer) -> Steps[None]:
        source = answer.source
        yield from source.spaces()
        name, end = yield from source.text_before(Markers.of(_KEY, _CLOSE, "\n"))
        name = clean_name(name)
        if end == "\n":
            yield from source.spaces()
            end = yield from source.expect(_KEY, _CLOSE)
        arguments = Arguments(answer, name)
        yield answer.begin(name)
        value_end = Markers.of(_VALUE_END)
        while end == _KEY:
            key, _ = yield from source.text_before(Markers.of(_KEY_END))
            key = key.strip()
            yield from source.spaces()
            yield from source.expect(_VALUE)
            yield from arguments.read(key, arguments.types(key), value_end, in_lines=False)
            yield from source.spaces()
            end = yield from source.expect(_KEY, _CLOSE)
        yield arguments.close()
        answer.end_call()
