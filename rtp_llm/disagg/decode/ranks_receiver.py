# SPDX-License-Identifier: Apache-2.0
"""Transfers to a decode worker of several tensor-parallel ranks: each loads its own heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rtp_llm.disagg.decode.receiver import PromptLoad, RankLoad, RankReceiver
from rtp_llm.disagg.rank_messages import CancelLoad, CloseLoad, LoadEnded, LoadOrder

if TYPE_CHECKING:
    from rtp_llm.worker.ranks.ranks_worker import RanksWorker

# A rank polls its loads between steps, and at this interval while there are any.
_LOOK_SECONDS = 0.002


class RanksReceiver:
    """Receiving of rank 0, which tells the other ranks and hears from them.

    What it tells them has its place among steps, so that all ranks see a prompt's blocks from the
    same step on.
    """

    def __init__(self, own: RankReceiver, ranks: RanksWorker) -> None:
        self.own, self.ranks = own, ranks
        self._loads: dict[int, RanksLoad] = {}

    def check(self, ranks: int) -> None:
        """See Receiving."""
        self.own.check(ranks)

    def begin(self, order: LoadOrder) -> PromptLoad:
        """See Receiving."""
        load = RanksLoad(order.name, self.own.begin(order), self)
        self._loads[order.name] = load
        self.ranks.tell_beside(order)
        return load

    def hear(self) -> None:
        """Take what the other ranks have said."""
        for _, news in self.ranks.processes.take_news():
            assert isinstance(news, LoadEnded)
            self._loads[news.name].ended(news)

    def close_load(self, name: int, *, arrived: bool) -> None:
        """All ranks have ended it."""
        del self._loads[name]
        self.ranks.tell_beside(CloseLoad(name, arrived))

    def deliver(self) -> None:
        """See Receiving."""
        self.ranks.deliver()

    def fileno(self) -> int:
        """See Receiving; of what other ranks say the engine's waker tells."""
        return self.own.fileno()

    def clear(self) -> None:
        """See Receiving."""
        self.own.clear()

    def close(self) -> None:
        """See Receiving."""
        self.own.close()


class RanksLoad:
    """A prompt's load on all ranks; the first that fails ends it on the others."""

    def __init__(self, name: int, own: RankLoad, receiver: RanksReceiver) -> None:
        self._name, self._own, self._receiver = name, own, receiver
        self._open = len(receiver.ranks.processes.pids)
        self._failure: tuple[str, str] | None = None
        self._cancelled = False

    @property
    def code(self) -> str:
        return self._failure[0] if self._failure else self._own.code

    @property
    def message(self) -> str:
        return self._failure[1] if self._failure else self._own.message

    def ended(self, news: LoadEnded) -> None:
        """Another rank says so."""
        self._open -= 1
        if news.code != "none" and self._failure is None:
            self._failure = (news.code, news.message)

    def advance(self) -> bool:
        self._receiver.hear()
        own_done = self._own.advance()
        if self._failure is None and self._own.code != "none":
            self._failure = (self._own.code, self._own.message)
        if self._failure is not None:
            self.cancel()
        return own_done and not self._open

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._own.cancel()
            self._receiver.ranks.tell_beside(CancelLoad(self._name))

    def finish(self) -> None:
        self._own.finish()
        self._receiver.close_load(self._name, arrived=True)

    def abandon(self) -> None:
        self._own.abandon()
        self._receiver.close_load(self._name, arrived=False)


class OtherRankReceiver:
    """The work of ranks other than 0 between steps: do the loads that rank 0 orders, and report
    when they end."""

    def __init__(self, receiver: RankReceiver) -> None:
        self._receiver = receiver
        self._loads: dict[int, RankLoad] = {}
        self._under_way: set[int] = set()
        self._refused: list[LoadEnded] = []

    @property
    def patience(self) -> float | None:
        """See BesideSteps."""
        return _LOOK_SECONDS if self._under_way or self._refused else None

    def hear(self, message: Any) -> None:
        """See BesideSteps."""
        match message:
            case LoadOrder():
                self._begin(message)
            case CancelLoad():
                if message.name in self._under_way:
                    self._loads[message.name].cancel()
            case CloseLoad():
                load = self._loads.pop(message.name, None)
                if load is not None and message.arrived:
                    load.finish()
                elif load is not None:
                    load.abandon()

    def _begin(self, order: LoadOrder) -> None:
        try:
            self._loads[order.name] = self._receiver.begin(order)
        except (RuntimeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            self._refused.append(LoadEnded(order.name, "load_failed", reason))
        else:
            self._under_way.add(order.name)

    def tend(self) -> Iterator[LoadEnded]:
        """See BesideSteps."""
        yield from self._refused
        self._refused = []
        for name in list(self._under_way):
            load = self._loads[name]
            if load.advance():
                self._under_way.remove(name)
                yield LoadEnded(name, load.code, load.message)
