# SPDX-License-Identifier: Apache-2.0
"""Calls with a tag for each argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer
from rtp_llm.text.parsers.calls.arguments import Arguments
from rtp_llm.text.parsers.calls.section import rest_of_section
from rtp_llm.text.parsers.source import Malformed, Markers, Source, Steps


@dataclass(frozen=True)
class XmlCalls:
    """`open`, then calls `call NAME name_end arguments call_end`, then `close`.

    An argument is `parameter KEY key_end VALUE value_end`. ``key_ends`` maps each key end to the
    types of the value that follows; None: the types in the tool's schema. ``in_lines``: a value may
    be surrounded by newlines. ``bare``: models also write calls without `open`.
    """

    open: str
    close: str
    call: str
    name_end: str
    parameter: str
    key_ends: Mapping[str, frozenset[str] | None]
    value_end: str
    call_end: str
    in_lines: bool = False
    bare: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        return (
            self.open,
            self.close,
            self.call,
            self.parameter,
            self.value_end,
            self.call_end,
        )

    def read(self, answer: Answer) -> Steps[None]:
        begins = (self.open, self.call) if self.bare else (self.open,)
        triggers = Markers.of(*begins, *MESSAGE_ENDS)
        while True:
            trigger = yield from answer.text(triggers)
            try:
                if trigger == self.open:
                    yield from answer.source.spaces()
                    yield from answer.source.expect(self.call)
                yield from rest_of_section(answer, self.call, self.close, self._call)
            except Malformed:
                yield answer.give_up()

    def _call(self, answer: Answer) -> Steps[None]:
        source = answer.source
        name, _ = yield from word(source, self.name_end)
        arguments = Arguments(answer, name)
        yield from source.spaces()
        more = (yield from source.expect(self.parameter, self.call_end)) == self.parameter
        yield answer.begin(name)
        end = Markers.of(self.value_end)
        while more:
            key, key_end = yield from word(source, *self.key_ends)
            types = self.key_ends[key_end] or arguments.types(key)
            yield from arguments.read(key, types, end, in_lines=self.in_lines)
            yield from source.spaces()
            more = (yield from source.expect(self.parameter, self.call_end)) == self.parameter
        yield arguments.close()
        answer.end_call()


def word(source: Source, *ends: str) -> Steps[tuple[str, str]]:
    """Read a name and the one of `ends` after it. Raises Malformed if the name is invalid."""
    text, end = yield from source.text_before(Markers.of(*ends, "\n", "<"))
    if end not in ends or not text.strip():
        raise Malformed
    return text.strip(), end
