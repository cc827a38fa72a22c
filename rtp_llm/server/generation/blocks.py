# SPDX-License-Identifier: Apache-2.0
"""Turns an answer's deltas into consecutive blocks, as Responses and Messages stream them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rtp_llm.text.parsers.deltas import OutputDelta, ReasoningDelta, TextDelta, ToolCallBegin

Kind = Literal["text", "reasoning", "call"]


@dataclass(slots=True)
class Block:
    """A part of an answer; `name` and `id` are a call's, `id` is empty if the model gave none."""

    kind: Kind
    name: str = ""
    id: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole text; for a call, its arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Opened:
    """A block begins."""

    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    """A block has more text."""

    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """A block has ended. `cut`: the answer ended before the block was complete."""

    block: Block
    cut: bool = False


Step: TypeAlias = Opened | Grown | Closed


class Blocks:
    """The blocks of one answer; at most one is open at a time.

    White space between two blocks is dropped, as models put line breaks between reasoning,
    calls and text. At the start and the end of an answer it is kept.
    """

    def __init__(self) -> None:
        self._open: Block | None = None
        self._begun = False
        # White space that is kept if more text of the same block follows.
        self._blank, self._blank_kind = "", ""

    def take(self, delta: OutputDelta) -> Iterator[Step]:
        """The changes to the blocks that a delta causes."""
        if isinstance(delta, ToolCallBegin):
            yield from self._begin(Block("call", delta.name, delta.id))
        elif isinstance(delta, TextDelta):
            yield from self._grow("text", delta.text)
        elif isinstance(delta, ReasoningDelta):
            yield from self._grow("reasoning", delta.text)
        elif self._open is not None and delta.text:
            yield _add(self._open, delta.text)

    def finish(self, cut: bool) -> Iterator[Step]:
        """Close the open block. `cut`: the answer ended by its length or by a failure."""
        blank = self._blank if self._blank_kind == "text" else ""
        if blank and not self._begun:
            yield from self._begin(Block("text"))
        if blank and self._open is not None and self._open.kind == "text":
            yield _add(self._open, blank)
        yield from self._close(cut)

    def _grow(self, kind: Kind, text: str) -> Iterator[Step]:
        text = (self._blank if self._blank_kind == kind else "") + text
        said = text.rstrip()
        blank = text[len(said) :]
        if said:
            block = self._open
            if block is None or block.kind != kind:
                if self._begun or kind == "reasoning":
                    said = _LINE_BREAKS.sub("", said)
                block = Block(kind)
                yield from self._begin(block)
            yield _add(block, said)
        self._blank, self._blank_kind = blank, kind

    def _begin(self, block: Block) -> Iterator[Step]:
        yield from self._close(False)
        self._open, self._begun, self._blank = block, True, ""
        yield Opened(block)

    def _close(self, cut: bool) -> Iterator[Step]:
        if self._open is not None:
            yield Closed(self._open, cut)
        self._open = None


# Leading line breaks of a text, and the spaces before them.
_LINE_BREAKS = re.compile(r"\A\s*\n")


def _add(block: Block, text: str) -> Grown:
    block.pieces.append(text)
    return Grown(block, text)
