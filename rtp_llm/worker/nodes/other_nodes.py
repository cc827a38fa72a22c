# SPDX-License-Identifier: Apache-2.0
"""The other nodes of a model's ranks, as the process of rank 0 sees them."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Mapping

from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.nodes.frames import (
    Alive,
    FromFirst,
    Layout,
    Lost,
    Over,
    Step,
    encode,
    from_other,
    of_message,
)
from rtp_llm.worker.nodes.link import Link, LinkError
from rtp_llm.worker.plan.layout import PlanLayout
from rtp_llm.worker.shared.loss import Loss, WorkerLostError
from rtp_llm.worker.shared.memory import PLAN
from rtp_llm.worker.shared.messages import Ended

# Its machine is watched by the kernel (see Link), its ranks by themselves: this is for a process
# that is stopped, or has nothing to run on.
SILENCE_SECONDS = 10.0


class OtherNodes:
    """Sends each node what its ranks must know, in the order in which ranks here are told.

    A thread listens to each: ``loss`` is told when one is gone or silent, or its ranks can go on no
    more.
    Every call raises WorkerLostError when a node is gone.
    """

    def __init__(self, links: Mapping[int, Link], loss: Loss) -> None:
        """``links``: by the number of the node."""
        self._links, self._loss = dict(links), loss
        self._layout: PlanLayout | None = None
        self._plans = memoryview(b"")
        self._listeners = [
            threading.Thread(target=self._listen, args=pair, name=f"node {pair[0]}", daemon=True)
            for pair in self._links.items()
        ]
        for listener in self._listeners:
            listener.start()

    def send(self, frame: FromFirst) -> None:
        """To all of them."""
        data = encode(frame)
        for node, link in self._links.items():
            try:
                link.send(data)
            except LinkError as error:
                self._loss.tell(f"node {node}: {error}")
                self._loss.check()

    def hand_over(self, layout: PlanLayout, descriptor: int, in_flight: int) -> None:
        """Let them wait for steps, whose plans lie in the memory of ``descriptor`` here."""
        memory = mmap.mmap(descriptor, layout.size, access=mmap.ACCESS_READ)
        self._layout, self._plans = layout, memoryview(memory)
        self.send(Layout.of(layout, in_flight))

    def tell(self, message: NewSequences | Ended) -> None:
        """All ranks, before the step that is published next."""
        self.send(of_message(message))

    def publish(self, read: Callable[[int], list[int]], kind: int) -> None:
        """A step of this ``kind``; ``read`` gives a plan's numbers, as many as it is asked for."""
        numbers: list[int] = []
        arrays = b""
        if kind == PLAN and self._layout is not None:
            numbers = read(self._layout.count)
            arrays = b"".join(self._layout.spans(numbers, self._plans))
        self.send(Step(kind=kind, numbers=numbers, arrays=arrays))

    def close(self) -> None:
        """The engine ends: so do they, in order unless somebody was lost."""
        self._loss.expect()
        if not self._loss.happened:
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
                if not isinstance(frame, Lost):
                    raise LinkError(f"{link.peer} comes twice")
                self._loss.tell(f"node {node}: {frame.reason}")
        except LinkError as error:
            self._loss.tell(f"node {node}: {error}")
