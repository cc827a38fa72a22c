# SPDX-License-Identifier: Apache-2.0
"""Loads of prompts' blocks on all ranks of a decode worker, as its scheduler side sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.disagg.rank_messages import CancelLoad, CloseLoad, LoadEnded, LoadOrder

if TYPE_CHECKING:
    from rtp_llm.worker.ranks.rank_group import RankGroup


class GroupLoad:
    """A prompt's load on all ranks; the first rank that fails ends it on the others."""

    def __init__(self, name: int, group: RankGroup) -> None:
        self._name, self._group = name, group
        self._open = group.size
        self._cancelled = False
        self.code, self.message = "none", ""

    @property
    def done(self) -> bool:
        """Whether no rank writes to the blocks any more. ``code`` is "none" when everything has
        arrived, else says what went wrong, and ``message`` the same in words."""
        return not self._open

    def rank_ended(self, news: LoadEnded) -> None:
        """Take note of the end on one rank."""
        self._open -= 1
        if news.code == "none" or self.code != "none":
            return
        self.code, self.message = news.code, news.message
        if self._open:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the load; returns at once, it ends later."""
        if not self._cancelled:
            self._cancelled = True
            self._group.send(CancelLoad(self._name))

    def finish(self) -> None:
        """Everything has arrived: steps from now on see it in the cache."""
        self._group.send(CloseLoad(self._name, arrived=True))

    def abandon(self) -> None:
        """The load has failed: nothing writes to the cache that is not ordered before later
        work."""
        self._group.send(CloseLoad(self._name, arrived=False))


class GroupLoads:
    """Starts loads and follows them."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._loads: dict[int, GroupLoad] = {}

    def start(self, order: LoadOrder) -> GroupLoad:
        """Start a load on all ranks. If this rank refuses it, it has failed when this returns."""
        load = self._loads[order.name] = GroupLoad(order.name, self._group)
        self._group.send(order)
        self.poll()
        return load

    def poll(self) -> None:
        """Handle what has arrived on this rank and what the others report."""
        for news in self._group.get_finished():
            assert isinstance(news, LoadEnded)
            load = self._loads[news.name]
            load.rank_ended(news)
            if load.done:
                del self._loads[news.name]

    def deliver(self) -> None:
        """Let all ranks receive what was sent since the last step."""
        self._group.deliver()
