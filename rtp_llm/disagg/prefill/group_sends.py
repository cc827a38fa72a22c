# SPDX-License-Identifier: Apache-2.0
"""Prompts that all ranks of a prefill worker offer, as its scheduler side sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rtp_llm.disagg.rank_messages import EndSend, SendFailed, SendOrder, SendReleased

if TYPE_CHECKING:
    from rtp_llm.worker.ranks.rank_group import RankGroup


class GroupSends:
    """A prompt's blocks are read until no rank reads them."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._readers: dict[int, int] = {}  # by name: ranks that have not released it
        self._failures: dict[int, str] = {}

    def start(self, order: SendOrder) -> None:
        """Offer the blocks of a sequence from the next step on."""
        self._readers[order.name] = self._group.size
        self._group.send(order)

    def end(self, name: int) -> None:
        """End a prompt that nobody needs any more."""
        self._group.send(EndSend(name))

    def poll(self) -> None:
        """Handle what the ranks report."""
        for news in self._group.get_finished():
            if isinstance(news, SendFailed):
                self._failures[news.sequence] = news.reason
            elif isinstance(news, SendReleased):
                self._readers[news.name] -= 1

    def take_failures(self) -> Mapping[int, str]:
        """Return sequences with blocks that did not reach a store, and why; each once."""
        failures, self._failures = self._failures, {}
        return failures

    def take_if_released(self, name: int) -> bool:
        """Whether neither a copy nor a store reads blocks of an ended prompt; then it is
        forgotten."""
        if self._readers[name]:
            return False
        del self._readers[name]
        return True

    def deliver(self) -> None:
        """Let all ranks receive what was sent since the last step."""
        self._group.deliver()
