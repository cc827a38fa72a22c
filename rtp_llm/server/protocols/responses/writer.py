# SPDX-License-Identifier: Apache-2.0
"""Turns the deltas of an answer into the events of a response and the response itself."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from rtp_llm.server.generation.blocks import Block, Blocks, Closed, Grown, Opened, Step
from rtp_llm.server.generation.generation import LogprobEntry, Usage
from rtp_llm.server.protocols.responses import events
from rtp_llm.server.protocols.responses.events import (
    Event,
    FunctionCallItem,
    Item,
    ItemStatus,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseObject,
)
from rtp_llm.server.protocols.responses.logprobs import TextLogprobs, without_bytes
from rtp_llm.server.protocols.responses.response_options import ResponseOptions
from rtp_llm.server.turn.opaque_reasoning import seal
from rtp_llm.server.types.errors import ApiError
from rtp_llm.text.parsers.deltas import OutputDelta, TextDelta

_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}


def new_id(prefix: str) -> str:
    """A new, unique id."""
    return f"{prefix}_{uuid.uuid4().hex}"


class ResponseWriter:
    """One response: `begin`, any number of `take`, then `finish` or `fail`.

    `response` accumulates what the events say, whether or not the events are used.
    """

    def __init__(
        self,
        response_options: ResponseOptions,
        logprobs: TextLogprobs | None = None,
        response_id: str | None = None,
    ) -> None:
        self._response_options = response_options
        self._logprobs = logprobs
        self._blocks = Blocks()
        self._numbers = itertools.count()
        self._item_id = self._call_id = ""
        self.response = ResponseObject(
            id=response_id or new_id("resp"),
            created_at=int(time.time()),
            status="in_progress",
            model=response_options.model,
            **response_options.echo,
        )
        if self.response.background:
            self.response.status = "queued"

    def begin(self) -> list[Event]:
        """The first events."""
        response = msgspec.structs.replace(self.response, output=[])
        second = events.Queued if response.status == "queued" else events.InProgress
        return [
            events.Created(sequence_number=next(self._numbers), response=response),
            second(sequence_number=next(self._numbers), response=response),
        ]

    def take(
        self, deltas: Iterable[OutputDelta], entries: Sequence[LogprobEntry] = ()
    ) -> list[Event]:
        """The events of deltas; the first delta ends the queued state.

        `entries`: log-probabilities of their tokens.
        """
        made = self._proceed() if self.response.status == "queued" else []
        if self._logprobs is not None:
            self._logprobs.add(entries)
        for delta in deltas:
            if self._logprobs is not None and isinstance(delta, TextDelta):
                self._logprobs.take(delta)
            for step in self._blocks.take(delta):
                made += self._events(step)
        return made

    def finish(self, cut: bool, usage: Usage) -> list[Event]:
        """The last events. `cut`: the answer reached its maximum length."""
        last = self._close(cut)
        response = self.response
        response.usage = usage_content(usage)
        if cut:
            response.status = "incomplete"
            response.incomplete_details = events.IncompleteDetails(reason="max_output_tokens")
            last.append(events.Incomplete(sequence_number=next(self._numbers), response=response))
        else:
            response.status = "completed"
            response.completed_at = int(time.time())
            last.append(events.Completed(sequence_number=next(self._numbers), response=response))
        return last

    def fail(self, error: ApiError, usage: Usage) -> list[Event]:
        """The last events of a failed answer."""
        last = self._close(True)
        self.response.status = "failed"
        self.response.usage = usage_content(usage)
        # Clients know only few codes; ours becomes part of the message.
        self.response.error = events.ResponseError(code="server_error", message=error.message)
        return [*last, events.Failed(sequence_number=next(self._numbers), response=self.response)]

    def cancel(self, usage: Usage) -> None:
        """Mark the answer as cancelled, without events."""
        self._close(True)
        self.response.status, self.response.usage = "cancelled", usage_content(usage)

    # -- parts ---------------------------------------------------------------------------------

    def _proceed(self) -> list[Event]:
        self.response.status = "in_progress"
        response = msgspec.structs.replace(self.response, output=[])
        return [events.InProgress(sequence_number=next(self._numbers), response=response)]

    def _close(self, cut: bool) -> list[Event]:
        return [event for step in self._blocks.finish(cut) for event in self._events(step)]

    def _events(self, step: Step) -> Iterator[Event]:
        if isinstance(step, Opened):
            yield from self._opened(step.block)
        elif isinstance(step, Grown):
            yield self._grown(step)
        else:
            yield from self._closed(step)

    def _opened(self, block: Block) -> Iterator[Event]:
        self._item_id = new_id(_PREFIXES[block.kind])
        self._call_id = block.id or f"call_{uuid.uuid4().hex[:24]}"
        if self._logprobs is not None:
            if block.kind == "text":
                self._logprobs.begin(is_first=not self._index)
            else:
                self._logprobs.drop()
        item = self._item(block, "in_progress")
        yield events.ItemAdded(
            sequence_number=next(self._numbers), output_index=self._index, item=item
        )
        if block.kind != "call":
            part = OutputText(text="") if block.kind == "text" else ReasoningText(text="")
            yield events.PartAdded(sequence_number=next(self._numbers), **self._place, part=part)

    def _grown(self, step: Grown) -> Event:
        if step.block.kind == "text":
            gained = self._logprobs.grow(step.text) if self._logprobs is not None else []
            return events.TextDelta(
                sequence_number=next(self._numbers),
                **self._place,
                delta=step.text,
                logprobs=without_bytes(gained),
            )
        if step.block.kind == "reasoning":
            return events.ReasoningDelta(
                sequence_number=next(self._numbers), **self._place, delta=step.text
            )
        return events.ArgumentsDelta(
            sequence_number=next(self._numbers), **self._place, delta=step.text
        )

    def _closed(self, step: Closed) -> Iterator[Event]:
        block, text = step.block, step.block.text
        item = self._item(block, "incomplete" if step.cut else "completed")
        if isinstance(item, FunctionCallItem):
            yield events.ArgumentsDone(
                sequence_number=next(self._numbers), **self._place, name=item.name, arguments=text
            )
        else:
            part = item.content[0]
            if isinstance(part, OutputText):
                yield events.TextDone(
                    sequence_number=next(self._numbers),
                    **self._place,
                    text=text,
                    logprobs=without_bytes(part.logprobs),
                )
            else:
                yield events.ReasoningDone(
                    sequence_number=next(self._numbers), **self._place, text=text
                )
            yield events.PartDone(sequence_number=next(self._numbers), **self._place, part=part)
        yield events.ItemDone(
            sequence_number=next(self._numbers), output_index=self._index, item=item
        )
        self.response.output.append(item)

    def _item(self, block: Block, status: ItemStatus) -> Item:
        """The item of a block; its content is empty while it is in progress."""
        done = status != "in_progress"
        text = block.text if done else ""
        if block.kind == "text":
            entries = self._logprobs.message if self._logprobs is not None else []
            content = [OutputText(text=text, logprobs=entries)] if done else []
            return MessageItem(id=self._item_id, status=status, content=content)
        if block.kind == "reasoning":
            return ReasoningItem(
                id=self._item_id,
                content=[ReasoningText(text=text)] if done else [],
                encrypted_content=seal(text)
                if self._response_options.seal_reasoning
                else msgspec.UNSET,
                status=status,
            )
        space, name = self._response_options.namespaces.get(block.name, (msgspec.UNSET, block.name))
        return FunctionCallItem(
            id=self._item_id,
            call_id=self._call_id,
            name=name,
            arguments=text,
            status=status,
            namespace=space,
        )

    @property
    def _index(self) -> int:
        return len(self.response.output)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": self._index}


def usage_content(usage: Usage) -> events.ResponseUsage:
    """The usage in the format of the Responses API."""
    prompt, answer = usage.prompt_tokens, usage.completion_tokens
    return events.ResponseUsage(
        input_tokens=prompt,
        input_tokens_details=events.InputTokensDetails(
            cached_tokens=usage.cached_tokens, cache_write_tokens=0
        ),
        output_tokens=answer,
        output_tokens_details=events.OutputTokensDetails(
            reasoning_tokens=usage.reasoning_tokens or 0
        ),
        total_tokens=prompt + answer,
    )
