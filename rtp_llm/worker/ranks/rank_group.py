# SPDX-License-Identifier: Apache-2.0
"""The ranks of a model as the scheduler side of a KV connector sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtp_llm.worker.kv_connector import WorkerConnector
    from rtp_llm.worker.ranks.ranks_worker import RanksWorker


class RankGroup:
    """Sends messages to a connector's worker side on all ranks, and receives theirs.

    A model on one device is a group of one rank.
    """

    def __init__(self, own: WorkerConnector, ranks: RanksWorker | None = None) -> None:
        """``own`` is the worker side in this process, ``ranks`` those of the other processes."""
        self.own, self._ranks = own, ranks
        self.size = 1 if ranks is None else 1 + len(ranks.processes.pids)

    def on_news(self, wake: Callable[[], None]) -> None:
        """Let another thread call ``wake`` when a rank of another process has sent a message."""
        if self._ranks is not None:
            self._ranks.processes.on_news = wake

    def send(self, message: Any) -> None:
        """Send a message to all ranks. Those of other processes receive it before the next step, or
        with `deliver`."""
        if self._ranks is not None:
            self._ranks.send_to_connectors(message)
        self.own.handle_message(message)

    def deliver(self) -> None:
        """Let the ranks receive what was sent since the last step."""
        if self._ranks is not None:
            self._ranks.deliver()

    def get_finished(self) -> Iterator[Any]:
        """Yield the messages of all ranks since the last call."""
        yield from self.own.get_finished()
        if self._ranks is not None:
            for _, message in self._ranks.processes.take_news():
                yield message
