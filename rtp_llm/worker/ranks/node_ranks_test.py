# SPDX-License-Identifier: Apache-2.0
"""A plan that travels to another node arrives as it is; what cannot be a plan is refused."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from rtp_llm.request.mm_features import MultiModalFeature, PlaceholderRange
from rtp_llm.request.params import PoolingParams
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.worker.forked_sequences import ForkedSequences
from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.plan import arrays
from rtp_llm.worker.plan.layout import PlanLayout
from rtp_llm.worker.plan.reader import PlanReader
from rtp_llm.worker.plan.step_plan import StepPlan
from rtp_llm.worker.ranks.frames import (
    Begin,
    Layout,
    Step,
    encode,
    from_first,
    from_other,
    of_message,
)
from rtp_llm.worker.ranks.node_link import Link, LinkError
from rtp_llm.worker.ranks.node_ranks import NodeRanks
from rtp_llm.worker.ranks.other_nodes import OtherNodes
from rtp_llm.worker.ranks.rank_failure import RankFailure
from rtp_llm.worker.ranks.rank_messages import Ended, Steps
from rtp_llm.worker.ranks.rank_processes import RankProcesses
from rtp_llm.worker.ranks.shared_memory import IDLE, PLAN

ROOM = 512  # bytes of each array
# 3 sequences with 5 tokens and 4 rows; tables of 2 and 0 blocks, 1 and 0 copies.
SIZES = {
    "num_seqs": 3,
    "num_tokens": 5,
    "num_rows": 4,
    "num_outputs": 2,
    "max_seqlen_q": 2,
    "max_seqlen_k": 9,
    "sampling_flags": 7,
}
NUMBERS = [*(SIZES[name] for name in arrays.NUMBERS), 2, 1, 0, 0]


def make_layout() -> PlanLayout:
    """Of two cache groups; the second is recurrent and has no table."""
    places = iter(range(0, 100 * ROOM, ROOM))
    offsets = {each.name: next(places) for each in arrays.ARRAYS}
    groups = {each.name: (next(places), next(places)) for each in arrays.GROUP_ARRAYS}
    groups["block_table"] = (groups["block_table"][0], -1)
    return PlanLayout(next(places), offsets, groups)


LAYOUT = make_layout()


def make_plan() -> int:
    """The memory of a plan."""
    descriptor = os.memfd_create("plan")
    drawn = np.random.default_rng(3)
    memory = bytearray(drawn.bytes(LAYOUT.size))
    at = LAYOUT.offsets["history_cu"]
    memory[at : at + 20] = np.array([0, 2, 2, 6, 7], np.int32).tobytes()
    os.write(descriptor, memory)
    return descriptor


class Board(RankProcesses):
    """Of a node without ranks: what they would be given."""

    def __init__(self) -> None:
        self.rank_failure = RankFailure()
        self._processes, self._pipes = [], []
        self.reported: list[Any] = []
        self.plans = -1

    def hand_over(self, steps: Steps, descriptors: Any) -> None:
        self.plans = os.dup(descriptors[0])

    def notify(self, message: Any) -> None:
        self.reported.append(message)


class Wire:
    """A link whose frames a node takes at once."""

    peer = "somewhere"

    def __init__(self, node: NodeRanks) -> None:
        self.node = node
        self.bytes = 0

    def send(self, frame: bytes) -> None:
        self.bytes += len(frame)
        self.node.take(cast(Any, from_first(frame)))

    def readable(self, seconds: float) -> bool:
        return True

    def receive(self) -> bytes:
        raise LinkError("it says nothing")


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board()
    yield made
    os.close(made.plans)


def same(one: StepPlan, other: StepPlan) -> bool:
    """All numbers and arrays."""
    pairs = zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True)
    return all(
        all(map(np.array_equal, a, b)) if isinstance(a, tuple) else np.array_equal(a, b)
        for a, b in pairs
    )


def test_plans_and_messages_arrive_as_they_are(board: Board) -> None:
    wire = Wire(NodeRanks(board, 1.0))
    nodes = OtherNodes({1: cast(Link, wire)}, RankFailure())
    here = make_plan()
    nodes.hand_over(LAYOUT, here, 2)
    nodes.publish(lambda count: NUMBERS[:count], PLAN)
    plan = PlanReader(LAYOUT, here).read(NUMBERS)
    assert same(PlanReader(LAYOUT, board.plans).read(NUMBERS), plan)
    assert len(plan.history_tokens) == 7
    assert wire.bytes < 1500  # nothing but what the plan has
    os.close(here)

    params = SamplingParams(temperature=0.5, logit_bias={3: 1.0}, stop=["x"])
    prompt = np.arange(5, dtype=np.int32)
    new = NewSequences(np.array([7, 8]), (1, 2), [2**63], prompt, params, {4: 0}.keys(), (), True)  # type: ignore[arg-type]
    place = PlaceholderRange(offset=1, length=1)
    image = MultiModalFeature(mm_position=place, modality="image", identifier="a", data=b"four")
    new = replace(new, mm_features=(image,))
    nodes.notify(new)
    nodes.notify(Ended((7,), True))
    found, ended = board.reported
    assert (found.ids, found.slots, found.seeds, found.stop_ids) == ([7, 8], [1, 2], [2**63], [4])
    assert found.params == params and found.constrained and not found.prompt_only
    assert found.mm_features == [image]
    assert found.prompt.tolist() == [0, 1, 2, 3, 4] and found.prompt.dtype == np.int32
    assert ended == Ended((7,), True)

    nodes.notify(ForkedSequences(7, 1, [9, 10], np.array([3, 4]), [-(2**63), 5], prompt, [4, 6]))  # type: ignore[arg-type]
    forked = board.reported[-1]
    assert (forked.source, forked.source_slot, forked.ids, forked.slots) == (7, 1, [9, 10], [3, 4])
    assert forked.seeds == [-(2**63), 5]
    assert [each.tolist() for each in forked.histories] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 6]]

    pool = PoolingParams(pooling_type="cls")
    nodes.notify(NewSequences([9], [3], [0], prompt, pool, []))
    assert board.reported[-1].params == pool and board.reported[-1].prompt_only


def changed(name: str, number: int) -> list[int]:
    place = len(arrays.NUMBERS) if name == "table_width" else arrays.NUMBERS.index(name)
    return [*NUMBERS[:place], number, *NUMBERS[place + 1 :]]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"kind": 9}, "a step of kind 9"),
        ({"numbers": NUMBERS[:-1]}, "not the numbers of a plan"),
        ({"numbers": changed("num_seqs", -1)}, "not the numbers of a plan"),
        ({"numbers": changed("num_tokens", 2**31)}, "a plan of .* has no 8589934592 bytes"),
        ({"numbers": changed("table_width", 2**40)}, "has no 13194139533312 bytes"),
        ({"numbers": changed("num_outputs", 10_000)}, "has no 40004 bytes"),
        ({"arrays": b""}, "a plan that cannot be"),
        ({"arrays": bytes(5000)}, r"a plan with \d+ bytes too many"),
    ],
)
def test_a_plan_that_cannot_be(step: dict[str, Any], reason: str, board: Board) -> None:
    node = NodeRanks(board, 1.0)
    node.take(Layout.of(LAYOUT, 1))
    plan: dict[str, Any] = {"kind": PLAN, "numbers": NUMBERS}
    with pytest.raises(LinkError, match=reason):
        node.take(Step(**{**plan, "arrays": bytes(400), **step}))


@pytest.mark.parametrize(
    "change",
    [
        {"size": 0},
        {"size": 2**50},
        {"size": 600},
        {"offsets": {**LAYOUT.offsets, "more": 0}},
        {"offsets": {}},
        {"group_offsets": {}},
        {"group_offsets": {**LAYOUT.group_offsets, "copy_pairs": (0,)}},
    ],
)
def test_a_layout_that_cannot_be(change: dict[str, Any]) -> None:
    frame = Layout(**{**msgspec.structs.asdict(Layout.of(LAYOUT, 1)), **change})
    with pytest.raises(LinkError, match="not the layout of a plan"):
        frame.plan_layout()


def test_steps_come_behind_their_layout() -> None:
    node = NodeRanks(Board(), 1.0)
    with pytest.raises(LinkError, match="steps before their layout"):
        node.take(Step(kind=IDLE, numbers=[], arrays=b""))


@pytest.mark.parametrize("data", [b"", b"\x80", b"garbage", encode(Begin(rendezvous="x"))[:-1]])
def test_what_is_no_message(data: bytes) -> None:
    for read in (from_first, from_other):
        with pytest.raises(LinkError, match="a message that no node sends"):
            read(data)


def test_a_node_says_only_what_nodes_say() -> None:
    with pytest.raises(LinkError, match="a message that no node sends"):
        from_other(encode(of_message(Ended((1,), False))))
