# SPDX-License-Identifier: Apache-2.0
"""The other nodes of a model's ranks, as the process of rank 0 sees them."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Mapping

from rtp_llm.worker.plan.layout import PlanLayout
from rtp_llm.worker.ranks.frames import (
    Alive,
    Failed,
    FromFirst,
    Layout,
    Over,
    Step,
    encode,
    from_other,
    of_message,
)
from rtp_llm.worker.ranks.node_link import Link, LinkError
from rtp_llm.worker.ranks.rank_failure import RankFailure, WorkerLostError
from rtp_llm.worker.ranks.rank_messages import ToNode
from rtp_llm.worker.ranks.shared_memory import PLAN

# The kernel watches a node's machine (see Link), and the node watches its ranks: this is for a
# process that is stopped or gets no core.
SILENCE_SECONDS = 10.0


class OtherNodes:
    """Sends each node what its ranks must know, in the same order as to the local ranks.

    A thread listens to each node: ``rank_failure`` is notified when one is gone or silent, or its
    ranks cannot continue. Every call raises WorkerLostError if a node is gone.
    """

    def __init__(self, links: Mapping[int, Link], rank_failure: RankFailure) -> None:
        """``links``: the connections, by node number."""
        self._links, self._rank_failure = dict(links), rank_failure
        self._layout: PlanLayout | None = None
        self._plans = memoryview(b"")
        self._listeners = [
            threading.Thread(target=self._listen, args=pair, name=f"node {pair[0]}", daemon=True)
            for pair in self._links.items()
        ]
        for listener in self._listeners:
            listener.start()

    def send(self, frame: FromFirst) -> None:
        """Send a frame to all nodes."""
        data = encode(frame)
        for node, link in self._links.items():
            try:
                link.send(data)
            except LinkError as error:
                self._rank_failure.report(f"node {node}: {error}")
                self._rank_failure.check()

    def hand_over(self, layout: PlanLayout, descriptor: int, in_flight: int) -> None:
        """Let the nodes wait for steps; their plans are in the local memory of ``descriptor``."""
        memory = mmap.mmap(descriptor, layout.size, access=mmap.ACCESS_READ)
        self._layout, self._plans = layout, memoryview(memory)
        self.send(Layout.of(layout, in_flight))

    def notify(self, message: ToNode) -> None:
        """Send a message to all ranks, which receive it before the next published step."""
        self.send(of_message(message))

    def publish(self, read: Callable[[int], list[int]], kind: int) -> None:
        """Send a step of this ``kind``; ``read`` returns the requested count of plan numbers."""
        numbers: list[int] = []
        arrays = b""
        if kind == PLAN and self._layout is not None:
            numbers = read(self._layout.count)
            arrays = b"".join(self._layout.spans(numbers, self._plans))
        self.send(Step(kind=kind, numbers=numbers, arrays=arrays))

    def close(self) -> None:
        """End the nodes along with the engine, regularly unless a rank was lost."""
        self._rank_failure.expect()
        if not self._rank_failure.happened:
            with contextlib.suppress(WorkerLostError):  # the end of the connection says it, too
                self.send(Over())
        for link in self._links.values():
            link.close()
        for listener in self._listeners:
            listener.join()

    def _listen(self, node: int, link: Link) -> None:
        try:
            while True:
                if not link.readable(SILENCE_SECONDS):
                    raise LinkError(f"{link.peer} gave no sign of life for {SILENCE_SECONDS:g} s")
                frame = from_other(link.receive())
                if isinstance(frame, Alive):
                    continue
                if not isinstance(frame, Failed):
                    raise LinkError(f"{link.peer} comes twice")
                self._rank_failure.report(f"node {node}: {frame.reason}")
        except LinkError as error:
            self._rank_failure.report(f"node {node}: {error}")
