# SPDX-License-Identifier: Apache-2.0
"""Transfers from a prefill worker of several tensor-parallel ranks: each offers its own heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rtp_llm.disagg.prefill.prompt_sender import PromptSender
from rtp_llm.disagg.rank_messages import EndSend, SendFailed, SendOrder, SendReleased

if TYPE_CHECKING:
    from rtp_llm.disagg.wire.messages import Stored
    from rtp_llm.worker.ranks.ranks_worker import RanksWorker

# A rank sees between steps what its copies have done, and so often while something is under way.
_LOOK_SECONDS = 0.02


class RanksSender(PromptSender):
    """That of rank 0, which tells the other ranks and hears from them.

    A prompt's blocks are read until no rank reads them.
    """

    def __init__(self, own: PromptSender, ranks: RanksWorker) -> None:
        super().__init__(own.writer, own.store)
        self._ranks = ranks
        self._readers: dict[int, int] = {}  # other ranks that still read what was begun
        self._failures: dict[int, str] = {}

    def begin(self, order: SendOrder) -> None:
        """See PromptSender."""
        self._readers[order.name] = len(self._ranks.processes.pids)
        self._ranks.tell_beside(order)
        super().begin(order)

    def end(self, name: int, sequence: int) -> None:
        """See PromptSender."""
        self._ranks.tell_beside(EndSend(name))
        super().end(name, sequence)

    def reads(self, name: int, sequence: int) -> bool:
        """See PromptSender."""
        self._hear()
        if self._readers[name] or super().reads(name, sequence):
            return True
        del self._readers[name]
        return False

    def take_failures(self) -> Mapping[int, str]:
        """See PromptSender."""
        self._hear()
        failures, self._failures = self._failures, {}
        return {**super().take_failures(), **failures}

    def deliver(self) -> None:
        """See PromptSender."""
        self._ranks.deliver()

    def _hear(self) -> None:
        for _, news in self._ranks.processes.take_news():
            if isinstance(news, SendFailed):
                self._failures[news.sequence] = news.reason
            elif isinstance(news, SendReleased):
                self._readers[news.name] -= 1


class OtherRankSender:
    """The work of ranks other than 0 between steps: offer blocks of the prompts rank 0 names."""

    def __init__(self, sender: PromptSender) -> None:
        self._sender = sender
        self._orders: dict[int, SendOrder] = {}
        self._ended: set[int] = set()

    @property
    def patience(self) -> float | None:
        """See BesideSteps."""
        return _LOOK_SECONDS if self._ended or self._sender.under_way else None

    def hear(self, message: Any) -> None:
        """See BesideSteps."""
        match message:
            case SendOrder():
                self._orders[message.name] = message
                self._sender.announce(message.name, "tcp", _tell_nobody)
                self._sender.begin(message)
            case EndSend():
                self._ended.add(message.name)
                self._sender.end(message.name, self._orders[message.name].sequence)

    def tend(self) -> Iterator[SendFailed | SendReleased]:
        """See BesideSteps."""
        for sequence, reason in self._sender.take_failures().items():
            yield SendFailed(sequence, reason)
        self._sender.take_released()
        for name in list(self._ended):
            if not self._sender.reads(name, self._orders[name].sequence):
                self._ended.remove(name)
                del self._orders[name]
                yield SendReleased(name)


def _tell_nobody(_: Stored) -> None:
    """By TCP blocks are asked for; nobody need be told of them."""
