# SPDX-License-Identifier: Apache-2.0
"""The ranks of a node other than the first: they get what the first node sends."""

from __future__ import annotations

import mmap
import os

from rtp_llm.worker.plan.layout import PlanLayout
from rtp_llm.worker.ranks.frames import End, Fork, Layout, Sequences, Step
from rtp_llm.worker.ranks.node_link import LinkError
from rtp_llm.worker.ranks.rank_messages import Ended
from rtp_llm.worker.ranks.rank_processes import RankProcesses
from rtp_llm.worker.ranks.shared_memory import IDLE, PLAN, SAMPLE
from rtp_llm.worker.ranks.step_board import StepBoard


class NodeRanks:
    """Puts plans from the first node where ``processes`` look for them.

    Raises WorkerLostError if a rank is lost, LinkError for frames that no node can have sent.
    """

    def __init__(self, processes: RankProcesses, timeout: float) -> None:
        """``timeout``: seconds within which a rank has to begin a step."""
        self._processes, self._timeout = processes, timeout
        self._board: StepBoard | None = None
        self._layout: PlanLayout | None = None
        self._plans = memoryview(b"")

    def take(self, frame: Layout | Sequences | Fork | End | Step) -> None:
        """Execute a frame of the first node."""
        if isinstance(frame, Layout):
            self._begin(frame)
            return
        if self._board is None:
            raise LinkError("steps before their layout")
        if isinstance(frame, Sequences):
            self._board.notify(frame.new_sequences())
        elif isinstance(frame, Fork):
            self._board.notify(frame.forked_sequences())
        elif isinstance(frame, End):
            self._board.notify(Ended(frame.ids, frame.aborted))
        else:
            self._publish(self._board, frame)

    def _begin(self, frame: Layout) -> None:
        self._layout = layout = frame.plan_layout()
        descriptor = os.memfd_create("rtp_llm_plans")
        os.ftruncate(descriptor, layout.size)
        self._plans = memoryview(mmap.mmap(descriptor, layout.size))
        self._board = StepBoard(
            self._processes, layout, descriptor, frame.in_flight, timeout=self._timeout
        )
        os.close(descriptor)

    def _publish(self, board: StepBoard, step: Step) -> None:
        if step.kind not in (PLAN, IDLE, SAMPLE):
            raise LinkError(f"a step of kind {step.kind}")
        board.await_taken()
        if step.kind == PLAN:
            self._fill(step)
            board.publish(step.numbers)
        else:
            board.publish(None, kind=step.kind)

    def _fill(self, step: Step) -> None:
        assert self._layout is not None
        rest = memoryview(step.arrays)
        try:
            for span in self._layout.spans(step.numbers, self._plans):
                span[:] = rest[: len(span)]
                rest = rest[len(span) :]
        except ValueError as error:
            raise LinkError(f"a plan that cannot be: {error}") from error
        if rest:
            raise LinkError(f"a plan with {len(rest)} bytes too many")
