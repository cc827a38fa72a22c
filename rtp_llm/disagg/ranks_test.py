# SPDX-License-Identifier: Apache-2.0
"""Messages between a worker's ranks about a prompt, without processes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rtp_llm.disagg.decode.group_loads import GroupLoads
from rtp_llm.disagg.decode.rank_loads import RankLoad, RankLoads
from rtp_llm.disagg.prefill.group_sends import GroupSends
from rtp_llm.disagg.prefill.prompt_sender import PromptSender
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
from rtp_llm.worker.ranks.rank_group import RankGroup

ORDER = LoadOrder(5, ("tcp://there",), (), 1.0)
SEND = SendOrder(5, 80, np.arange(3, dtype=np.int32), "")


class Ranks:
    """Two more ranks: the messages sent to them, and those they send."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.news: list[tuple[int, Any]] = []
        self.processes = SimpleNamespace(pids=[1, 2], take_news=self._take_news)

    def send_to_connectors(self, message: Any) -> None:
        self.sent.append(message)

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
        self.rows: tuple[()] = ()
        self.free = None

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


class Loading:
    """A rank's RankLoads whose blocks come by one load into one buffer."""

    def __init__(self) -> None:
        self.load, self.buffer = Load(), Buffer()
        client = SimpleNamespace(load=lambda *_, **__: self.load)
        sources = SimpleNamespace(loads=lambda *_: {(0, 1, 0): [(0, None)]})
        self.rank = RankLoads(client, sources, 4, self._new_buffer)  # type: ignore[arg-type]
        self.refusal: Exception | None = None

    def _new_buffer(self, _: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return self.buffer


@pytest.fixture
def loading() -> Loading:
    return Loading()


def test_a_prompt_is_there_when_every_rank_has_its_own(loading: Loading) -> None:
    ranks = Ranks()
    loads = GroupLoads(RankGroup(loading.rank, ranks))  # type: ignore[arg-type]
    prompt = loads.start(ORDER)
    loading.load.end()
    loads.poll()
    assert not prompt.done
    ranks.news = [(1, LoadEnded(5, "none", "")), (2, LoadEnded(5, "none", ""))]
    loads.poll()
    assert prompt.done and prompt.code == "none"
    prompt.finish()
    assert ranks.sent == [ORDER, CloseLoad(5, arrived=True)]
    assert loading.buffer.calls == ["finish"]


def test_one_rank_is_a_group_of_one(loading: Loading) -> None:
    loads = GroupLoads(RankGroup(loading.rank))
    prompt = loads.start(ORDER)
    loads.poll()
    assert not prompt.done
    loading.load.end()
    loads.poll()
    assert prompt.done and prompt.code == "none"
    prompt.finish()
    assert loading.buffer.calls == ["finish"] and not loading.rank.loads


@pytest.mark.parametrize("own", [True, False])
def test_a_rank_that_fails_ends_the_load_of_all(own: bool, loading: Loading) -> None:
    load, ranks = loading.load, Ranks()
    loads = GroupLoads(RankGroup(loading.rank, ranks))  # type: ignore[arg-type]
    prompt = loads.start(ORDER)
    if own:
        load.end("peer_lost", "gone")
    else:
        ranks.news = [(2, LoadEnded(5, "peer_lost", "gone"))]
    loads.poll()
    assert not prompt.done
    assert load.done and ranks.sent == [ORDER, CancelLoad(5)]
    left = (1, 2) if own else (1,)
    ranks.news = [(rank, LoadEnded(5, "cancelled", "")) for rank in left]
    loads.poll()
    assert prompt.done
    assert (prompt.code, prompt.message) == ("peer_lost", "gone")
    prompt.abandon()
    assert ranks.sent[2:] == [CloseLoad(5, arrived=False)]
    assert loading.buffer.calls == ["abandon"]


def test_a_rank_loads_what_is_ordered(loading: Loading) -> None:
    rank = loading.rank
    assert rank.poll_seconds is None
    rank.handle_message(ORDER)
    assert not list(rank.get_finished()) and rank.poll_seconds is not None
    loading.load.end()
    assert list(rank.get_finished()) == [LoadEnded(5, "none", "")]
    rank.handle_message(CancelLoad(5))  # too late: rank 0 did not know
    assert not list(rank.get_finished()) and rank.poll_seconds is None
    rank.handle_message(CloseLoad(5, arrived=True))
    assert loading.buffer.calls == ["finish"]


def test_a_rank_without_memory_says_so(loading: Loading) -> None:
    rank, loading.refusal = loading.rank, RuntimeError("no memory")
    rank.handle_message(ORDER)
    rank.handle_message(CancelLoad(5))
    assert list(rank.get_finished()) == [LoadEnded(5, "load_failed", "RuntimeError: no memory")]
    rank.handle_message(CloseLoad(5, arrived=False))
    assert not list(rank.get_finished())


def test_a_load_that_this_rank_refuses_has_failed_at_once(loading: Loading) -> None:
    ranks, loading.refusal = Ranks(), RuntimeError("no memory")
    loads = GroupLoads(RankGroup(loading.rank, ranks))  # type: ignore[arg-type]
    prompt = loads.start(ORDER)
    assert prompt.code == "load_failed" and not prompt.done
    assert ranks.sent == [ORDER, CancelLoad(5)]
    alone = GroupLoads(RankGroup(loading.rank)).start(ORDER)
    assert alone.code == "load_failed" and alone.done


class Sending:
    """One rank's writer and store."""

    def __init__(self) -> None:
        self.in_progress = False
        self.failures: dict[int, Exception] = {}
        self.read: set[str] = set()

    def begin(self, request: str, *_: Any) -> None:
        self.read.add(request)

    def has(self, request: str) -> bool:
        return request in self.read

    def take_failures(self) -> dict[int, Exception]:
        taken, self.failures = self.failures, {}
        return taken

    def busy(self, request: str) -> bool:
        return request in self.read

    def reads(self, _: int) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def sender() -> tuple[PromptSender, Sending]:
    sending = Sending()
    return PromptSender(sending, sending), sending  # type: ignore[arg-type]


def test_blocks_are_read_until_no_rank_reads_them() -> None:
    own, sending = sender()
    ranks = Ranks()
    sends = GroupSends(RankGroup(own, ranks))  # type: ignore[arg-type]
    own.announce(5, "tcp", lambda _: None)
    sends.start(SEND)
    sends.end(5)
    assert ranks.sent == [SEND, EndSend(5)]
    sending.read.clear()
    ranks.news = [(1, SendReleased(5))]
    sends.poll()
    assert not sends.take_if_released(5)
    ranks.news = [(2, SendReleased(5)), (2, SendFailed(96, "no room"))]
    sends.poll()
    assert sends.take_if_released(5)
    assert sends.take_failures() == {96: "no room"}
    assert not sends.take_failures()


def test_a_rank_offers_and_releases() -> None:
    rank, sending = sender()
    rank.handle_message(SEND)
    assert sending.read == {"5"} and rank.poll_seconds is None
    sending.failures = {80: OSError("no room")}
    assert list(rank.get_finished()) == [SendFailed(80, "no room")]
    rank.handle_message(EndSend(5))
    assert not list(rank.get_finished()) and rank.poll_seconds is not None
    sending.read.clear()
    assert list(rank.get_finished()) == [SendReleased(5)]
    assert rank.poll_seconds is None
