# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a worker tell each other of a prompt, without processes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rtp_llm.disagg.decode.ranks_receiver import OtherRankReceiver, RanksReceiver
from rtp_llm.disagg.decode.receiver import RankLoad
from rtp_llm.disagg.prefill.prompt_sender import PromptSender
from rtp_llm.disagg.prefill.ranks_sender import OtherRankSender, RanksSender
from rtp_llm.disagg.rank_messages import (
    CancelLoad,
    CloseLoad,
    EndSend,
    LoadEnded,
    LoadOrder,
    SendFailed,
    SendOrder,
    SendReleased,
)

ORDER = LoadOrder(5, ("tcp://there",), (), 1.0)
SEND = SendOrder(5, 80, np.arange(3, dtype=np.int32), "")


class Ranks:
    """Two more ranks: what they were told, and what they say."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.news: list[tuple[int, Any]] = []
        self.processes = SimpleNamespace(pids=[1, 2], take_news=self._take_news)

    def tell_beside(self, message: Any) -> None:
        self.told.append(message)

    def _take_news(self) -> list[tuple[int, Any]]:
        taken, self.news = self.news, []
        return taken


class Load:
    """From one rank of the prefill worker."""

    def __init__(self) -> None:
        self.done, self.code, self.message = False, "none", ""
        self.arrived: list[int] = []

    def poll(self) -> list[int]:
        taken, self.arrived = self.arrived, []
        return taken

    def cancel(self) -> None:
        self.end("cancelled")

    def end(self, code: str = "none", message: str = "") -> None:
        if not self.done:
            self.done, self.code, self.message = True, code, message


class Buffer:
    """What was done with it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def arrived(self, layers: list[int]) -> None:
        self.calls.append(layers)

    def finish(self) -> None:
        self.calls.append("finish")

    def abandon(self) -> None:
        self.calls.append("abandon")


def rank_load(*loads: Load, layers: int = 2) -> RankLoad:
    parts = Counter({layer: len(loads) for layer in range(layers)})
    return RankLoad(Buffer(), loads, parts)  # type: ignore[arg-type]


def test_a_layer_is_there_when_every_rank_has_sent_its_heads() -> None:
    first, second = Load(), Load()
    load = rank_load(first, second)
    first.arrived = [0, 1]
    assert not load.advance() and not load.buffer.calls  # type: ignore[attr-defined]
    second.arrived = [1]
    assert not load.advance()
    second.arrived = [0]
    first.end()
    second.end()
    assert load.advance() and load.code == "none"
    assert load.buffer.calls == [[1], [0]]  # type: ignore[attr-defined]


def test_heads_that_fail_end_the_others_and_are_the_reason() -> None:
    first, second = Load(), Load()
    load = rank_load(first, second)
    second.end("checksum", "damaged")
    assert not load.advance()
    assert first.code == "cancelled"
    assert load.advance()
    assert (load.code, load.message) == ("checksum", "damaged")


def receiver(own: RankLoad) -> tuple[RanksReceiver, Ranks]:
    ranks = Ranks()
    begin: Any = SimpleNamespace(begin=lambda _: own)
    return RanksReceiver(begin, ranks), ranks  # type: ignore[arg-type]


def test_a_prompt_is_there_when_every_rank_has_its_own() -> None:
    load = Load()
    made, ranks = receiver(rank_load(load))
    prompt = made.begin(ORDER)
    load.end()
    assert not prompt.advance()
    ranks.news = [(1, LoadEnded(5, "none", "")), (2, LoadEnded(5, "none", ""))]
    assert prompt.advance() and prompt.code == "none"
    prompt.finish()
    assert ranks.told == [ORDER, CloseLoad(5, arrived=True)]


@pytest.mark.parametrize("own", [True, False])
def test_a_rank_that_fails_ends_the_load_of_all(own: bool) -> None:
    load = Load()
    made, ranks = receiver(rank_load(load))
    prompt = made.begin(ORDER)
    if own:
        load.end("peer_lost", "gone")
    else:
        ranks.news = [(2, LoadEnded(5, "peer_lost", "gone"))]
    assert not prompt.advance()
    assert load.done and ranks.told == [ORDER, CancelLoad(5)]
    left = (1, 2) if own else (1,)
    ranks.news = [(rank, LoadEnded(5, "cancelled", "")) for rank in left]
    assert prompt.advance()
    assert (prompt.code, prompt.message) == ("peer_lost", "gone")
    prompt.abandon()
    assert ranks.told[2:] == [CloseLoad(5, arrived=False)]


def test_another_rank_loads_what_it_is_told() -> None:
    load = Load()
    own = rank_load(load)
    other = OtherRankReceiver(SimpleNamespace(begin=lambda _: own))  # type: ignore[arg-type]
    assert other.patience is None
    other.hear(ORDER)
    assert not list(other.tend()) and other.patience is not None
    load.end()
    assert list(other.tend()) == [LoadEnded(5, "none", "")]
    other.hear(CancelLoad(5))  # too late: rank 0 did not know
    assert not list(other.tend()) and other.patience is None
    other.hear(CloseLoad(5, arrived=True))
    assert own.buffer.calls == ["finish"]  # type: ignore[attr-defined]


def test_another_rank_without_memory_says_so() -> None:
    def refuse(_: Any) -> Any:
        raise RuntimeError("no memory")

    other = OtherRankReceiver(SimpleNamespace(begin=refuse))  # type: ignore[arg-type]
    other.hear(ORDER)
    other.hear(CancelLoad(5))
    assert list(other.tend()) == [LoadEnded(5, "load_failed", "RuntimeError: no memory")]
    other.hear(CloseLoad(5, arrived=False))
    assert not list(other.tend())


class Sending:
    """One rank's writer and store."""

    def __init__(self) -> None:
        self.under_way = False
        self.failures: dict[int, Exception] = {}
        self.read: set[str] = set()

    def begin(self, request: str, *_: Any) -> None:
        self.read.add(request)

    def take_failures(self) -> dict[int, Exception]:
        taken, self.failures = self.failures, {}
        return taken

    def busy(self, request: str) -> bool:
        return request in self.read

    def reads(self, _: int) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def sender() -> tuple[Any, Sending]:
    sending = Sending()
    return PromptSender(sending, sending), sending  # type: ignore[arg-type]


def test_blocks_are_read_until_no_rank_reads_them() -> None:
    own, sending = sender()
    ranks = Ranks()
    made = RanksSender(own, ranks)  # type: ignore[arg-type]
    made.announce(5, "tcp", lambda _: None)
    made.begin(SEND)
    made.end(5, 80)
    assert ranks.told == [SEND, EndSend(5)]
    sending.read.clear()
    ranks.news = [(1, SendReleased(5))]
    assert made.reads(5, 80)
    ranks.news = [(2, SendReleased(5)), (2, SendFailed(96, "no room"))]
    assert not made.reads(5, 80)
    assert made.take_failures() == {96: "no room"}
    assert not made.take_failures()


def test_another_rank_offers_and_releases() -> None:
    own, sending = sender()
    other = OtherRankSender(own)
    other.hear(SEND)
    assert sending.read == {"5"} and other.patience is None
    sending.failures = {80: OSError("no room")}
    assert list(other.tend()) == [SendFailed(80, "no room")]
    other.hear(EndSend(5))
    assert not list(other.tend()) and other.patience is not None
    sending.read.clear()
    assert list(other.tend()) == [SendReleased(5)]
    assert other.patience is None
