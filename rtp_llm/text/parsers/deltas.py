# SPDX-License-Identifier: Apache-2.0
"""Deltas of an answer, common to all protocols: text, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer itself. ``tokens``: numbers of those that made it, where tracked."""

    text: str
    tokens: tuple[int, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """A call begins; calls of an answer are numbered from 0 and never interleave.

    ``id``: the model's own where its form has one, else empty and the caller makes one up.
    """

    index: int
    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """More of the JSON text of a call's arguments; its pieces in a row are the whole."""

    index: int
    text: str


OutputDelta: TypeAlias = TextDelta | ReasoningDelta | ToolCallBegin | ToolArguments


class OutputParser(Protocol):
    """Takes an answer in pieces, cut anywhere; belongs to one choice.

    Texts have the model's special tokens in them. The deltas in a row do not depend on the cuts,
    once neighbours of one kind are joined, and lose nothing: text that turns out not to be a call
    comes as TextDelta.
    """

    def feed(self, text: str) -> Sequence[OutputDelta]:
        """Add ``text`` and return the deltas that are now certain."""

    def finish(self) -> Sequence[OutputDelta]:
        """End the answer, complete or not, and return the remaining deltas; called once."""
