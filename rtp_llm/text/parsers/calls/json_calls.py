# SPDX-License-Identifier: Apache-2.0
"""Calls that are JSON objects with a name and arguments, between markers or bare."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer
from rtp_llm.text.parsers.calls import json_text
from rtp_llm.text.parsers.source import Malformed, Markers, Steps

ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True)
class TaggedJson:
    """`open`, then a call, an array of calls or calls in a row, then `close`.

    ``close`` empty: nothing closes them. ``lead``: what follows `open`; ``name``: the key of the
    name.
    """

    open: str
    close: str = ""
    lead: str = ""
    name: str = "name"

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.open, self.close) if self.close else (self.open,)

    def read(self, answer: Answer) -> Steps[None]:
        triggers = Markers.of(self.open, *MESSAGE_ENDS)
        while True:
            yield from answer.text(triggers)
            try:
                yield from self._calls(answer)
                yield from answer.source.spaces()
                if self.close and (yield from answer.source.closing(self.close)):
                    answer.end_call()
            except Malformed:
                # Small models forget the brace before the closing marker.
                if answer.in_call and self.close and (yield from answer.source.closing(self.close)):
                    answer.end_call()
                else:
                    yield answer.give_up()

    def _calls(self, answer: Answer) -> Steps[None]:
        yield from answer.source.spaces()
        if self.lead:
            yield from answer.source.expect(self.lead)
            yield from answer.source.spaces()
        if (yield from answer.source.peek()) == "[":
            yield from calls_in_array(answer, self.name)
            return
        yield from json_call(answer, name=self.name)
        yield from answer.source.spaces()
        while (yield from answer.source.peek()) == "{":
            yield from json_call(answer, name=self.name)
            yield from answer.source.spaces()


def calls_in_array(answer: Answer, name: str = "name") -> Steps[None]:
    """Read `[call, call, ...]`. Raises Malformed, Ended."""
    source = answer.source
    yield from source.expect("[")
    while True:
        yield from source.spaces()
        yield from json_call(answer, name=name)
        yield from source.spaces()
        if (yield from source.expect(",", "]")) == "]":
            answer.end_call()
            return


def json_call(answer: Answer, *, bare: bool = False, name: str = "name") -> Steps[None]:
    """Read `{"name": N, "arguments": {...}}`, its keys in any order.

    The call begins once its name and the beginning of its arguments have come; one without
    arguments has none. ``bare``: no marker says that this is a call, so it must have arguments and
    the name of a declared tool. ``name``: the key of the name. Raises Malformed, Ended.
    """
    call = _JsonCall(answer, bare, name)
    source = answer.source
    yield from source.expect("{")
    yield from source.spaces()
    more = not (yield from source.literal("}"))
    while more:
        key = yield from json_text.string(source)
        yield from source.spaces()
        yield from source.expect(":")
        yield from source.spaces()
        yield from call.member(key)
        yield from source.spaces()
        more = (yield from source.expect(",", "}")) == ","
        if more:
            yield from source.spaces()
    yield from call.close()


class _JsonCall:
    """What a call's object has said so far."""

    def __init__(self, answer: Answer, bare: bool, name_key: str) -> None:
        self._answer = answer
        self._bare = bare
        self._name_key = name_key
        self._name: str | None = None
        self._held: list[str] = []
        self._sent = False

    def member(self, key: str) -> Steps[None]:
        """Read the value of one key."""
        source = self._answer.source
        if key == self._name_key and self._name is None:
            self._name = yield from json_text.string(source)
            if self._bare and self._name not in self._answer.tools:
                raise Malformed
            if self._held:
                yield from self._send()
        elif key in ARGUMENTS and not self._sent and not self._held:
            if (yield from source.peek()) not in ("{", ""):
                raise Malformed
            if self._name is None:
                yield from json_text.nested(source, self._held.append)
            else:
                self._sent = True
                yield self._answer.begin(self._name)
                yield from json_text.nested(source, self._answer.arguments)
        else:
            yield from json_text.skip(source)

    def close(self) -> Steps[None]:
        """The object is over."""
        if self._name is None or (self._bare and not self._sent):
            raise Malformed
        if not self._sent:
            self._held.append("{}")
            yield from self._send()
        self._answer.end_call()

    def _send(self) -> Steps[None]:
        assert self._name is not None
        self._sent = True
        yield self._answer.begin(self._name)
        yield self._answer.arguments("".join(self._held))
