# SPDX-License-Identifier: Apache-2.0
"""GLM 4.5 and later, Hy3: a name, then keys and values in tags, on lines of their own or not."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer, clean_name
from rtp_llm.text.parsers.calls.arguments import Arguments
from rtp_llm.text.parsers.calls.section import rest_of_section
from rtp_llm.text.parsers.source import Malformed, Markers, Steps


@dataclass(frozen=True)
class KeyValueCall:
    """`<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>...</tool_call>`.

    ``suffix``: of every tag's name; ``separator``: a tag `<tool_sep>` follows the name.
    """

    suffix: str = ""
    separator: bool = False

    def tag(self, name: str) -> str:
        """A tag as it is written."""
        return f"<{name}{self.suffix}>"

    @property
    def markers(self) -> tuple[str, ...]:
        """All tags of a call."""
        names = ("tool_call", "/tool_call", "arg_key", "/arg_key", "arg_value", "/arg_value")
        return tuple(map(self.tag, (*names, *(("tool_sep",) if self.separator else ()))))

    def read(self, answer: Answer) -> Steps[None]:
        """Read a call, of which the first tag is read already."""
        source = answer.source
        key_begin, close = self.tag("arg_key"), self.tag("/tool_call")
        yield from source.spaces()
        ends = (self.tag("tool_sep"),) if self.separator else (key_begin, close, "\n")
        name, end = yield from source.text_before(Markers.of(*ends))
        name = clean_name(name)
        if end not in (key_begin, close):
            yield from source.spaces()
            end = yield from source.expect(key_begin, close)
        arguments = Arguments(answer, name)
        yield answer.begin(name)
        value_end = Markers.of(self.tag("/arg_value"))
        while end == key_begin:
            key, _ = yield from source.text_before(Markers.of(self.tag("/arg_key")))
            key = key.strip()
            yield from source.spaces()
            yield from source.expect(self.tag("arg_value"))
            yield from arguments.read(key, arguments.types(key), value_end, in_lines=False)
            yield from source.spaces()
            end = yield from source.expect(key_begin, close)
        yield arguments.close()
        answer.end_call()


_GLM = KeyValueCall()


@dataclass(frozen=True)
class GlmCalls:
    """GLM's calls, each in its own `<tool_call>` element."""

    markers: tuple[str, ...] = _GLM.markers

    def read(self, answer: Answer) -> Steps[None]:
        yield from answer.calls(Markers.of(_GLM.tag("tool_call"), *MESSAGE_ENDS), _GLM.read)


HY_SUFFIXES = ("", ":opensource")
_HY = {f"<tool_calls{suffix}>": KeyValueCall(suffix, separator=True) for suffix in HY_SUFFIXES}


@dataclass(frozen=True)
class HyCalls:
    """Calls within `<tool_calls>`; released models have a suffix in every tag."""

    markers: tuple[str, ...] = (
        *(marker for call in _HY.values() for marker in call.markers),
        *(call.tag(name) for call in _HY.values() for name in ("tool_calls", "/tool_calls")),
    )

    def read(self, answer: Answer) -> Steps[None]:
        triggers = Markers.of(*_HY, *MESSAGE_ENDS)
        while True:
            call = _HY[(yield from answer.text(triggers))]
            try:
                yield from answer.source.spaces()
                begin = yield from answer.source.expect(call.tag("tool_call"))
                yield from rest_of_section(answer, begin, call.tag("/tool_calls"), call.read)
            except Malformed:
                yield answer.give_up()
