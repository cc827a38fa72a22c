# SPDX-License-Identifier: Apache-2.0
"""Failing reads: nothing is written once a load is done, and nothing is leaked."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from rtp_llm.disagg.transports import pull_load as load_module
from rtp_llm.disagg.transports.interface import HOST
from rtp_llm.disagg.transports.libraries import LIBRARIES, chosen, has_rdma
from rtp_llm.disagg.transports.match import LayerMatch, RegionTable
from rtp_llm.disagg.transports.registry import offer_blocks, take_blocks
from rtp_llm.disagg.wire import bounded_queue as queue
from rtp_llm.disagg.wire.messages import Stored
from rtp_llm.testing.disagg.copying import CopyingLibrary
from rtp_llm.testing.disagg.sides import Sides, transport_called, wait_for

TEN = np.arange(10)


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sides]:
    with transport_called("copying", monkeypatch) as transport:
        made = Sides(transport)
        yield made
        made.close()


@pytest.fixture
def library(sides: Sides) -> CopyingLibrary:
    made: Any = LIBRARIES["nixl"](None)
    return made


def words_taken(sides: Sides) -> int:
    """Of both sides."""
    client: Any = sides.transports._clients["nixl"]
    export_table: Any = sides.stores._export_tables["nixl"]
    return sum(
        counters._memory.size - len(counters._free)
        for counters in (client._counters, export_table._counters)
    )


def hanging_load(sides: Sides, library: CopyingLibrary) -> Any:
    """One of ten blocks, whose reading has begun and does not end."""
    library.hangs = True
    sides.begin(1)
    load = sides.load(1, TEN)
    sides.store(1, 0, TEN)
    wait_for(lambda: library.readings == 1)
    return load


def test_blocks_that_were_released_while_they_were_read_are_not_used(
    sides: Sides, library: CopyingLibrary
) -> None:
    """The prefill worker's timeout ends first; its memory has other content by then."""
    load = hanging_load(sides, library)
    sides.stores.end("1")
    sides.there[:] = 1
    library.hangs = False
    wait_for(lambda: load.done)
    assert load.code == "request_ended"
    assert words_taken(sides) == 0


def test_a_word_that_another_request_got_is_not_ours(sides: Sides, library: CopyingLibrary) -> None:
    load = hanging_load(sides, library)
    sides.stores.end("1")
    sides.begin(2)
    library.hangs = False
    wait_for(lambda: load.done)
    assert load.code == "request_ended"


@pytest.mark.parametrize(("bound", "most"), [("MAX_WAITING", 4), ("MAX_WAITING_BYTES", 560 * 4)])
def test_a_peer_that_announces_more_blocks_than_are_read_waits(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    """The library does not come back from a call; what we ask for ourselves never waits."""
    monkeypatch.setattr(queue, bound, most)
    client: Any = sides.transports._clients["nixl"]
    goes_on = threading.Event()
    client._orders.put(goes_on.wait)
    wait_for(lambda: not client._orders._items)
    sides.begin(1)
    load = sides.load(1, *[TEN] * 30)
    telling = threading.Thread(target=lambda: [sides.store(1, each, TEN) for each in range(30)])
    telling.start()
    wait_for(lambda: len(client._orders._items) == 1 + 5)
    other = sides.load(2, TEN)
    other.cancel()
    assert len(client._orders._items) == 1 + 5 + 2 and telling.is_alive()
    goes_on.set()
    wait_for(lambda: load.done and other.done)
    telling.join()
    assert (load.code, other.code) == ("none", "cancelled")


@pytest.mark.parametrize("broken", ["broken", "unreachable"])
def test_a_failure_ends_loads_and_the_next_one_connects_anew(
    sides: Sides, library: CopyingLibrary, broken: str
) -> None:
    if broken == "unreachable":
        for reader in library.readers:
            reader.peer.close()
    setattr(library, broken, True)
    sides.transports.meet("peer", "127.0.0.1", sides.offers)
    sides.begin(1)
    load = sides.load(1, TEN)
    sides.store(1, 0, TEN)
    wait_for(lambda: load.done)
    assert load.code == ("peer_lost" if broken == "broken" else "connect_failed")
    assert all(reader.closed for reader in library.readers)
    setattr(library, broken, False)
    library.shared[sides.offers[0].address].regions = list(sides.offers[0].regions)
    sides.begin(2)
    again = sides.load(2, TEN)
    sides.store(2, 0, TEN)
    wait_for(lambda: again.done)
    assert again.code == "none" and sides.equal(TEN)


def test_a_reading_that_never_ends_is_cut_off_before_its_load_is_done(
    sides: Sides, library: CopyingLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its peer: another load of it fails too, and then everything goes on."""
    library.hangs = True
    loads = []
    for name in (1, 2):
        sides.begin(name)
        loads.append(sides.load(name, TEN + 10 * name))
        sides.store(name, 0, TEN + 10 * name)
    wait_for(lambda: library.readings == 2)
    loads[0].cancel()
    assert not loads[0].wait(0.1)  # type: ignore[attr-defined]
    monkeypatch.setattr(load_module, "CUT_SECONDS", 0.2)
    wait_for(lambda: loads[0].done and loads[1].done)
    assert [load.code for load in loads] == ["cancelled", "peer_lost"]
    assert all(reader.closed for reader in library.readers)
    library.hangs = False
    assert sides.equal(TEN[:0]) and words_taken(sides) == 2
    sides.begin(3)
    load = sides.load(3, TEN)
    sides.store(3, 0, TEN)
    wait_for(lambda: load.done)
    assert load.code == "none"


def test_what_nobody_expects_ends_loads_and_not_the_client(
    sides: Sides, library: CopyingLibrary
) -> None:
    library.insane = True
    sides.begin(1)
    load = sides.load(1, TEN)
    sides.store(1, 0, TEN)
    wait_for(lambda: load.done)
    assert load.code == "unknown"
    library.insane = False
    sides.begin(2)
    load = sides.load(2, TEN)
    sides.store(2, 0, TEN)
    wait_for(lambda: load.done)
    assert load.code == "none" and sides.equal(TEN)


@pytest.mark.parametrize("anew", [False, True], ids=["failure", "connects anew"])
def test_a_way_that_cannot_be_closed_ends_loads_and_not_the_client(
    sides: Sides, library: CopyingLibrary, caplog: pytest.LogCaptureFixture, anew: bool
) -> None:
    """The load says what came first, the log both."""
    library.stubborn = library.hangs = True
    sides.begin(1)
    load = sides.load(1, TEN)
    sides.store(1, 0, TEN[:5])
    wait_for(lambda: bool(library.readers))
    if anew:
        sides.transports.meet("peer", "127.0.0.1", sides.offers)
    else:
        library.insane = True
        sides.store(1, 0, TEN[5:])
    wait_for(lambda: load.done)
    if anew:
        assert load.code == "peer_lost" and "connected anew" in load.message
    else:
        assert load.code == "unknown" and "what nobody expects" in load.message
    assert "will not close" in caplog.text
    assert ("what nobody expects" in caplog.text) is not anew
    library.stubborn = library.hangs = library.insane = False
    sides.begin(2)
    load = sides.load(2, TEN)
    sides.store(2, 0, TEN)
    wait_for(lambda: load.done)
    assert load.code == "none" and sides.equal(TEN)


def test_auto_leaves_a_library_out_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: object) -> Any:
        raise ImportError("libibverbs.so.1")

    monkeypatch.setitem(LIBRARIES, "nixl", broken)
    monkeypatch.setattr(
        "rtp_llm.disagg.transports.registry.chosen", lambda transport: ["nixl", "tcp"]
    )
    stores, offers = offer_blocks("auto", "127.0.0.1", "f", [], 1.0)
    transports = take_blocks("auto", "f", [])
    assert transports.meet("peer", "127.0.0.1", offers)[0] == "tcp"
    transports.close()
    stores.close()
    for make in (
        lambda: offer_blocks("nixl", "127.0.0.1", "f", [], 1.0),
        lambda: take_blocks("nixl", "f", []),
    ):
        with pytest.raises(RuntimeError, match=r"nixl .* cannot be imported: libibverbs"):
            make()


def test_a_peer_that_connects_anew_is_another_one(sides: Sides, library: CopyingLibrary) -> None:
    load = hanging_load(sides, library)
    sides.transports.meet("peer", "127.0.0.1", sides.offers)
    wait_for(lambda: load.done)
    assert load.code == "peer_lost"


def test_nothing_is_kept_of_a_peer_that_is_listed_no_longer(
    sides: Sides, library: CopyingLibrary
) -> None:
    load = hanging_load(sides, library)
    for _ in range(2):
        sides.transports.forget("peer")
    wait_for(lambda: load.done)
    assert load.code == "peer_lost"
    client: Any = sides.transports._clients["nixl"]
    wait_for(lambda: not client._peers and not client._met and not client._loads)


@pytest.mark.parametrize(
    "change",
    [
        {"counter": 8},
        {"rows": b"12345678"},
        {"rows": np.full((1, 7), -1, np.int64).tobytes()},
        {"layer": -1},
        {"name": 5},
        {"counter": -(2**63)},
        {"counter": 2**64 - 1},
        {"layer": 2**64 - 1},
    ],
    ids=str,
)
def test_a_peer_may_say_anything(
    sides: Sides, library: CopyingLibrary, change: dict[str, Any]
) -> None:
    said: list[Stored] = []
    sides.stores.begin("1", "nixl", said.append)
    sides.store(1, 0, TEN)
    load = sides.load(1, TEN, timeout=0.2)
    sides.transports.hear("peer", msgspec.structs.replace(said[0], **change), sides)
    sides.transports.hear("raw_peer", said[0], sides)
    wait_for(lambda: load.done)
    assert load.code in ("invalid_params", "prefill_timeout")


def test_nothing_outside_of_a_peers_memory_is_asked_for() -> None:
    regions = RegionTable([(1000, 100, HOST), (3000, 50, 1)])
    rows = np.array([[0, 0, 0, 1000, 1, 10, 10]], np.int64)
    for address in (990, 999, 1091, 2000, 2995, 3041, 2**63 - 1, -1, 0):
        offered = rows.copy()
        offered[0, 3] = address
        with pytest.raises(ValueError, match="outside of the memory"):
            LayerMatch(rows).take(offered, regions)
    for address in (1000, 1090, 3000, 3040):
        offered = rows.copy()
        offered[0, 3] = address
        assert LayerMatch(rows).take(offered, regions).tolist() == [[address, 1000, 10]]
    assert regions.devices(np.array([3049, 1000, 3000])).tolist() == [1, HOST, 1]
    for nonsense in (
        [(0, 8, HOST)],
        [(8, -1, HOST)],
        [(2**62, 2**62, HOST)],
        [(2**63, 1, HOST)],
        [(8, 8, -2)],
        [(8, 8, 2**40)],
    ):
        with pytest.raises(ValueError, match=r"is none|beyond 64 bits"):
            RegionTable(nonsense)


def test_neighbours_are_one_piece() -> None:
    def rows(addresses: list[int]) -> np.ndarray:
        made = np.zeros((len(addresses), 7), np.int64)
        made[:, 1], made[:, 3], made[:, 4] = np.arange(len(addresses)), addresses, 1
        made[:, 5:] = 10
        return made

    layer = LayerMatch(rows([100, 110, 120, 140, 90]))
    regions = RegionTable([(1, 1000, HOST)])
    pieces = layer.take(rows([200, 210, 220, 230, 300]), regions)
    assert pieces.tolist() == [[300, 90, 10], [200, 100, 30], [230, 140, 10]]
    assert layer.found and not len(layer.take(rows([200]), regions))


def test_who_has_too_much_waits_for_nothing(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtp_llm.disagg.transports.pull_client._MAX_LOADS", 2)
    loads = [sides.load(name, TEN) for name in (1, 2, 3, 2)]
    wait_for(lambda: loads[2].done and loads[3].done)
    assert [load.code for load in loads] == ["none", "none", "queue_full", "queue_full"]


def test_auto_is_a_library_where_there_is_rdma(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"nixl"}
    monkeypatch.setattr(
        "rtp_llm.disagg.transports.libraries.is_installed", lambda name: name in installed
    )
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("1: DOWN\n")
    assert not has_rdma(tmp_path)
    monkeypatch.setattr("rtp_llm.disagg.transports.libraries._INFINIBAND", tmp_path)
    assert chosen("auto") == ["tcp"] and chosen("nixl") == ["nixl"]
    (port / "state").write_text("4: ACTIVE\n")
    assert chosen("auto") == ["nixl", "tcp"]
    (port / "state").unlink()
    (port / "state").mkdir()  # cannot be read
    assert chosen("auto") == ["tcp"]
    (port / "state").rmdir()
    (port / "state").write_text("4: ACTIVE\n")
    installed.clear()
    assert chosen("auto") == ["tcp"]


def test_nothing_is_read_while_steps_in_flight_use_the_blocks(sides: Sides, library: Any) -> None:
    class Step:
        done = False

        def query(self) -> bool:
            return self.done

    step = Step()
    sides.begin(1)
    rows = [(0, sides.rows(sides.here, TEN))]
    load = sides.transports.load(sides.address, "1", rows, timeout=30.0, free=step)  # type: ignore[arg-type]
    sides.store(1, 0, TEN)
    time.sleep(0.1)
    assert not library.readings and not load.done and load.poll() == []
    step.done = True
    wait_for(lambda: load.done)
    assert load.code == "none" and load.poll() == [0] and sides.equal(TEN)
    sides.stores.end("1")
    step.done = False
    late = sides.transports.load(sides.address, "2", rows, timeout=30.0, free=step)  # type: ignore[arg-type]
    sides.begin(2)
    sides.store(2, 0, TEN)
    late.cancel()
    wait_for(lambda: late.done)
    assert late.code == "cancelled"
