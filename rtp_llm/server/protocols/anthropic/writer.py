# SPDX-License-Identifier: Apache-2.0
"""Turns the deltas of an answer into the events of a message and the message itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import msgspec

from rtp_llm.server.generation.blocks import Block, Blocks, Closed, Grown, Opened, Step
from rtp_llm.server.generation.call_arguments import tool_input
from rtp_llm.server.generation.generation import Usage
from rtp_llm.server.protocols.anthropic import events
from rtp_llm.server.protocols.anthropic.events import ContentBlock, Event, StopReason
from rtp_llm.server.protocols.anthropic.response_options import MessageResponseOptions
from rtp_llm.server.turn.opaque_reasoning import seal
from rtp_llm.text.parsers.deltas import OutputDelta


class MessageWriter:
    """One message: `begin`, any number of `take`, then `finish`.

    `message` accumulates what the events say, whether or not the events are used.
    """

    def __init__(self, response_options: MessageResponseOptions) -> None:
        self._response_options = response_options
        self._blocks = Blocks()
        self._called = False
        self._call_id = ""
        self.message = events.MessageObject(
            id=f"msg_{uuid.uuid4().hex}", model=response_options.model, usage=usage_content(Usage())
        )

    def begin(self, usage: Usage) -> list[Event]:
        """The first event. `usage`: of the prompt, before any token of the answer."""
        self.message.usage = usage_content(Usage(usage.prompt_tokens, 0, usage.cached_tokens))
        return [events.MessageStart(message=msgspec.structs.replace(self.message, content=[]))]

    def take(self, deltas: Iterable[OutputDelta]) -> list[Event]:
        """The events of deltas."""
        return [
            event
            for delta in deltas
            for step in self._blocks.take(delta)
            for event in self._events(step)
        ]

    def finish(self, cut: bool, stop_string: str | None, usage: Usage) -> list[Event]:
        """The last events. `cut`: the answer reached its maximum length."""
        last = [event for step in self._blocks.finish(cut) for event in self._events(step)]
        message = self.message
        message.stop_reason, message.stop_sequence = self._reason(cut, stop_string), stop_string
        message.usage = usage_content(usage)
        stop = events.Stop(stop_reason=message.stop_reason, stop_sequence=stop_string)
        return [*last, events.MessageDelta(delta=stop, usage=message.usage), events.MessageStop()]

    # -- parts ---------------------------------------------------------------------------------

    def _reason(self, cut: bool, stop_string: str | None) -> StopReason:
        if cut:
            return (
                "model_context_window_exceeded"
                if self._response_options.cut_by_context
                else "max_tokens"
            )
        if stop_string is not None:
            return "stop_sequence"
        return "tool_use" if self._called else "end_turn"

    def _events(self, step: Step) -> Iterator[Event]:
        if isinstance(step, Opened):
            self._called |= step.block.kind == "call"
            self._call_id = step.block.id or f"toolu_{uuid.uuid4().hex[:24]}"
            yield events.BlockStart(index=self._index, content_block=self._empty(step.block))
        elif isinstance(step, Grown):
            piece = self._piece(step)
            if piece is not None:
                yield events.BlockDelta(index=self._index, delta=piece)
        else:
            yield from self._closed(step)

    def _piece(self, step: Grown) -> events.Piece | None:
        if step.block.kind == "text":
            return events.TextPiece(text=step.text)
        if step.block.kind == "call":
            return events.InputPiece(partial_json=step.text)
        return (
            events.ThinkingPiece(thinking=step.text)
            if self._response_options.show_thinking
            else None
        )

    def _closed(self, step: Closed) -> Iterator[Event]:
        block = self._whole(step.block)
        if isinstance(block, events.ThinkingBlock):
            signature = events.SignaturePiece(signature=block.signature)
            yield events.BlockDelta(index=self._index, delta=signature)
        yield events.BlockStop(index=self._index)
        self.message.content.append(block)

    def _empty(self, block: Block) -> ContentBlock:
        if block.kind == "text":
            return events.TextBlock(text="")
        if block.kind == "reasoning":
            return events.ThinkingBlock(thinking="", signature="")
        return events.ToolUseBlock(id=self._call_id, name=block.name, input={})

    def _whole(self, block: Block) -> ContentBlock:
        text = block.text
        if block.kind == "text":
            return events.TextBlock(text=text)
        if block.kind == "reasoning":
            shown = text if self._response_options.show_thinking else ""
            return events.ThinkingBlock(thinking=shown, signature=seal(text))
        return events.ToolUseBlock(id=self._call_id, name=block.name, input=tool_input(text))

    @property
    def _index(self) -> int:
        return len(self.message.content)


def usage_content(usage: Usage) -> events.MessageUsage:
    """The usage in the format of the Messages API."""
    return events.MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=events.MessageTokensDetails(
            thinking_tokens=usage.reasoning_tokens or 0
        ),
    )
