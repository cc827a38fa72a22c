# SPDX-License-Identifier: Apache-2.0
"""The parser of one answer: its reasoning, then text and calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer
from rtp_llm.text.parsers.deltas import OutputDelta, ReasoningDelta, TextDelta, ToolArguments
from rtp_llm.text.parsers.source import Ended, Markers, Steps


class ToolFormat(Protocol):
    """A syntax of tool calls, with the parser of answers in it."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of the form that may be special tokens of the model."""

    def read(self, answer: Answer) -> Steps[None]:
        """Read the answer to its end. Raises Ended."""


class Plain:
    """Text alone, without what ends messages."""

    markers: tuple[str, ...] = ()

    def read(self, answer: Answer) -> Steps[None]:
        yield from answer.text(Markers.of(*MESSAGE_ENDS))


class Verbatim:
    """The OutputParser of an answer in which nothing is looked for."""

    def feed(self, text: str) -> Sequence[OutputDelta]:
        return (TextDelta(text),) if text else ()

    def finish(self) -> Sequence[OutputDelta]:
        return ()


class StepsParser:
    """An OutputParser out of steps that read `answer.source`."""

    def __init__(self, steps: Steps[None], answer: Answer) -> None:
        self._steps = steps
        self._answer = answer

    def feed(self, text: str) -> Sequence[OutputDelta]:
        self._answer.source.push(text)
        return joined(self._until_more_is_needed())

    def finish(self) -> Sequence[OutputDelta]:
        self._answer.source.end()
        return joined(self._until_more_is_needed())

    def _until_more_is_needed(self) -> Iterable[OutputDelta]:
        try:
            while (step := next(self._steps)) is not None:
                yield step
        except Ended:
            if (rest := self._answer.rest()) is not None:
                yield rest


def joined(deltas: Iterable[OutputDelta]) -> list[OutputDelta]:
    """The deltas without empty ones, neighbours of one kind as one."""
    joined: list[OutputDelta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        match last, delta:
            case _, TextDelta("") | ReasoningDelta("") | ToolArguments(_, ""):
                pass
            case TextDelta(before), TextDelta(more):
                joined[-1] = TextDelta(before + more)
            case ReasoningDelta(before), ReasoningDelta(more):
                joined[-1] = ReasoningDelta(before + more)
            case ToolArguments(index, before), ToolArguments(_, more):
                joined[-1] = ToolArguments(index, before + more)
            case _:
                joined.append(delta)
    return joined
