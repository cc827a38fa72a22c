# SPDX-License-Identifier: Apache-2.0
"""Messages between nodes, as bytes; the reader checks types and sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from rtp_llm.request.mm_features import MultiModalFeature
from rtp_llm.request.params import RequestParams
from rtp_llm.worker.forked_sequences import ForkedSequences
from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.plan.layout import PlanLayout
from rtp_llm.worker.ranks.node_link import LinkError
from rtp_llm.worker.ranks.rank_messages import Ended, ToNode

PROTOCOL = 5  # changes with what follows

# -- from another node to the first ---------------------------------------------------------------


class Hello(msgspec.Struct, tag="hello", frozen=True, kw_only=True):
    """Which node it is, and what must be the same on all: ``shared``, by name."""

    node: int
    shared: dict[str, Any]


class Failed(msgspec.Struct, tag="lost", frozen=True, kw_only=True):
    """The node's ranks cannot continue."""

    reason: str


class Alive(msgspec.Struct, tag="alive", frozen=True):
    """The node's process is running; sent repeatedly after Begin."""


# -- from the first node to another ---------------------------------------------------------------


class Refused(msgspec.Struct, tag="refused", frozen=True, kw_only=True):
    """The node cannot take part, and trying again would not help."""

    reason: str


class Begin(msgspec.Struct, tag="begin", frozen=True, kw_only=True):
    """All nodes have connected: start the ranks, which meet at ``rendezvous`` (see Membership)."""

    rendezvous: str


class Layout(msgspec.Struct, tag="layout", frozen=True, kw_only=True):
    """Steps start to arrive; see Steps."""

    size: int
    offsets: dict[str, int]
    group_offsets: dict[str, tuple[int, ...]]
    in_flight: int

    @classmethod
    def of(cls, layout: PlanLayout, in_flight: int) -> Layout:
        """The frame of a plan layout."""
        return cls(**dataclasses.asdict(layout), in_flight=in_flight)

    def plan_layout(self) -> PlanLayout:
        """The plan layout of this frame. Raises LinkError if it is impossible."""
        layout = PlanLayout(self.size, self.offsets, self.group_offsets)
        try:
            layout.check()
        except ValueError as error:
            raise LinkError(str(error)) from error
        return layout


class Sequences(msgspec.Struct, tag="sequences", frozen=True, kw_only=True):
    """NewSequences; ``prompt``: int32 numbers."""

    ids: list[int]
    slots: list[int]
    seeds: list[int]
    prompt: bytes
    params: RequestParams
    stop_ids: list[int]
    constrained: bool
    beam_search: bool
    mm_features: list[MultiModalFeature]

    @classmethod
    def of(cls, new: NewSequences) -> Sequences:
        """The frame of new sequences, without processors, which only rank 0 has."""
        return cls(
            ids=_numbers(new.ids),
            slots=_numbers(new.slots),
            seeds=_numbers(new.seeds),
            prompt=np.asarray(new.prompt, np.int32).tobytes(),
            params=new.params,
            stop_ids=_numbers(new.stop_ids),
            constrained=new.constrained,
            beam_search=new.beam_search,
            mm_features=list(new.mm_features),
        )

    def new_sequences(self) -> NewSequences:
        """As a worker takes them."""
        return NewSequences(
            ids=self.ids,
            slots=self.slots,
            seeds=self.seeds,
            prompt=np.frombuffer(self.prompt, np.int32),
            params=self.params,
            stop_ids=self.stop_ids,
            constrained=self.constrained,
            beam_search=self.beam_search,
            mm_features=self.mm_features,
        )


def _numbers(values: Iterable[int]) -> list[int]:
    return [int(each) for each in values]


class Fork(msgspec.Struct, tag="fork", frozen=True, kw_only=True):
    """ForkedSequences; ``tokens``: int32 numbers."""

    source: int
    source_slot: int
    ids: list[int]
    slots: list[int]
    seeds: list[int]
    tokens: bytes
    last_tokens: list[int]

    @classmethod
    def of(cls, forked: ForkedSequences) -> Fork:
        """The frame of forked sequences."""
        return cls(
            source=int(forked.source),
            source_slot=int(forked.source_slot),
            ids=_numbers(forked.ids),
            slots=_numbers(forked.slots),
            seeds=_numbers(forked.seeds),
            tokens=np.asarray(forked.tokens, np.int32).tobytes(),
            last_tokens=_numbers(forked.last_tokens),
        )

    def forked_sequences(self) -> ForkedSequences:
        """As a worker takes them."""
        return ForkedSequences(
            source=self.source,
            source_slot=self.source_slot,
            ids=self.ids,
            slots=self.slots,
            seeds=self.seeds,
            tokens=np.frombuffer(self.tokens, np.int32),
            last_tokens=self.last_tokens,
        )


class End(msgspec.Struct, tag="end", frozen=True, kw_only=True):
    """Ended."""

    ids: tuple[int, ...]
    aborted: bool


class Step(msgspec.Struct, tag="step", frozen=True, kw_only=True):
    """A published step: its ``kind`` (see StepMemory) and, for a plan, its numbers and parts as
    given by StepChannel and PlanLayout.spans."""

    kind: int
    numbers: list[int]
    arrays: bytes


class Over(msgspec.Struct, tag="over", frozen=True, kw_only=True):
    """The engine shuts down regularly."""


FromFirst = Refused | Begin | Layout | Sequences | Fork | End | Step | Over
FromOther = Hello | Failed | Alive

_encoder = msgspec.msgpack.Encoder()
_of_first = msgspec.msgpack.Decoder(FromFirst)
_of_other = msgspec.msgpack.Decoder(FromOther)


def encode(frame: FromFirst | FromOther) -> bytes:
    """The bytes of a frame."""
    return _encoder.encode(frame)


def from_first(data: bytes | bytearray) -> FromFirst:
    """Decode a frame of the first node. Raises LinkError for anything else."""
    try:
        frame: FromFirst = _of_first.decode(data)
        return frame
    except msgspec.MsgspecError as error:
        raise LinkError(f"a message that no node sends: {error}") from error


def from_other(data: bytes | bytearray) -> FromOther:
    """Decode a frame of another node. Raises LinkError for anything else."""
    try:
        frame: FromOther = _of_other.decode(data)
        return frame
    except msgspec.MsgspecError as error:
        raise LinkError(f"a message that no node sends: {error}") from error


def of_message(message: ToNode) -> Sequences | Fork | End:
    """The frame of a message to workers."""
    if isinstance(message, Ended):
        return End(ids=tuple(_numbers(message.ids)), aborted=message.aborted)
    if isinstance(message, ForkedSequences):
        return Fork.of(message)
    return Sequences.of(message)
