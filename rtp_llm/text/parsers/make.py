# SPDX-License-Identifier: Apache-2.0
"""The parser of an answer, by the names of its forms."""

from __future__ import annotations

from rtp_llm.text.parsers import formats
from rtp_llm.text.parsers.answer import Answer
from rtp_llm.text.parsers.calls.harmony import Harmony
from rtp_llm.text.parsers.deltas import OutputParser
from rtp_llm.text.parsers.parser import Plain, StepsParser, ToolFormat, Verbatim
from rtp_llm.text.parsers.source import Malformed, Source, Steps
from rtp_llm.text.parsers.spec import ParserSpec
from rtp_llm.text.parsers.thinking import Thinking


def make_parser(spec: ParserSpec) -> OutputParser:
    """A parser for one answer. Raises KeyError for a form that is not known."""
    if spec.plain:
        return Verbatim()
    answer = Answer(Source(), spec.tools, only_tools=spec.only_tools)
    thinking = None if spec.reasoning is None else formats.reasoning(spec.reasoning)
    form = Plain() if spec.tool_calls is None else formats.calls(spec.tool_calls)
    if formats.is_harmony(spec.tool_calls) or formats.is_harmony(spec.reasoning):
        harmony = Harmony(spec.reasoning_open, calls=spec.tool_calls is not None)
        return StepsParser(harmony.read(answer), answer)
    return StepsParser(_steps(thinking, spec.reasoning_open, form, answer), answer)


def _steps(
    thinking: Thinking | None, is_open: bool, form: ToolFormat, answer: Answer
) -> Steps[None]:
    if thinking is not None:
        try:
            yield from thinking.read(answer.source, is_open)
        except Malformed:  # so much white space is text
            yield answer.give_up()
    yield from form.read(answer)
