# SPDX-License-Identifier: Apache-2.0
"""Every transport keeps the same promises: ours, the one for tests, and libraries that are here."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from rtp_llm.testing.disagg.sides import BLOCKS, Sides, transport_called, wait_for

TRANSPORTS = ("tcp", "copying", "nixl", "mooncake")


@pytest.fixture(params=TRANSPORTS)
def sides(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sides]:
    with transport_called(request.param, monkeypatch) as transport:
        made = Sides(transport)
        yield made
        made.close()


def some(count: int, begin: int = 0, end: int = BLOCKS) -> np.ndarray:
    return np.random.default_rng().choice(np.arange(begin, end), count, replace=False)


def test_layers_arrive_one_by_one_as_they_are_stored(sides: Sides) -> None:
    first, second = some(40, 0, 100), some(50, 100, 200)
    sides.begin(7)
    load = sides.load(7, first, second)
    assert not load.done
    sides.store(7, 0, first)
    arrived: list[int] = []
    wait_for(lambda: bool(arrived.extend(load.poll()) or arrived))
    assert arrived == [0] and not load.done and sides.equal(first)
    sides.store(7, 1, second)
    wait_for(lambda: load.done)
    assert load.code == "none", load.message
    assert load.poll() == [1] and sides.equal(np.concatenate([first, second]))


def test_what_comes_in_chunks_and_was_not_asked_for(sides: Sides) -> None:
    """The prefill worker stores all blocks; the decode worker has the first ones itself."""
    blocks = np.arange(60)
    sides.begin(8)
    load = sides.load(8, blocks[13:])
    for chunk in np.array_split(blocks, 5):
        assert not load.done
        sides.store(8, 0, chunk)
    wait_for(lambda: load.done)
    assert load.code == "none" and sides.equal(blocks[13:])


def test_many_requests_at_once(sides: Sides) -> None:
    shares = np.array_split(some(200), 20)
    loads = []
    for name, share in enumerate(shares, start=1):
        sides.begin(name)
        loads.append(sides.load(name, share[:4], share[4:]))
    for layer in (1, 0):
        for name, share in enumerate(shares, start=1):
            sides.store(name, layer, share[:4] if layer == 0 else share[4:])
    wait_for(lambda: all(load.done for load in loads))
    assert [load.code for load in loads] == ["none"] * 20
    assert all(sorted(load.poll()) == [0, 1] for load in loads)
    assert sides.equal(np.concatenate(shares))
    for name in range(1, 21):
        sides.stores.end(str(name))
    wait_for(lambda: not any(sides.stores.busy(str(name)) for name in range(1, 21)))
    for name in range(1, 21):
        assert not sides.store(name, 0, shares[0])  # it has ended


def test_a_load_that_is_cancelled_ends_and_is_not_written_to(sides: Sides) -> None:
    sides.begin(9)
    load = sides.load(9, np.arange(10), np.arange(10, 20))
    load.cancel()
    wait_for(lambda: load.done)
    assert load.code == "cancelled" and "cancelled" in load.message
    sides.store(9, 0, np.arange(10))
    other = sides.load(10, np.arange(30, 40))
    sides.begin(10)
    sides.store(10, 0, np.arange(30, 40))
    wait_for(lambda: other.done)
    assert other.code == "none" and sides.equal(np.arange(30, 40))


def test_a_block_that_does_not_come_has_a_deadline(sides: Sides) -> None:
    sides.begin(11)
    load = sides.load(11, np.arange(10), timeout=0.2)
    sides.store(11, 0, np.arange(9))
    wait_for(lambda: load.done)
    assert load.code in ("prefill_timeout", "buffer_timeout")


def test_another_hash_is_another_block(sides: Sides) -> None:
    sides.begin(12)
    load = sides.load(12, np.arange(10), timeout=0.2)
    rows = sides.rows(sides.there, np.arange(10))
    rows[3, 2] += 1
    sides.stores.store("12", 0, rows)
    wait_for(lambda: load.done)
    assert load.code in ("prefill_timeout", "buffer_timeout")
    assert not sides.here[3].any()


def test_another_size_is_refused(sides: Sides) -> None:
    sides.begin(13)
    load = sides.load(13, np.arange(10))
    rows = sides.rows(sides.there, np.arange(10))
    rows[:, 5:] //= 2
    sides.stores.store("13", 0, rows)
    wait_for(lambda: load.done)
    assert load.code == "invalid_params" and sides.equal(np.arange(0))


def test_closing_ends_loads(sides: Sides) -> None:
    sides.begin(14)
    load = sides.load(14, np.arange(10))
    sides.transports.close()
    assert load.done and load.code == "cancelled"


def test_progress_is_heard_by_a_descriptor(sides: Sides) -> None:
    import select

    sides.begin(15)
    load = sides.load(15, np.arange(10))
    sides.store(15, 0, np.arange(10))
    assert select.select([sides.transports.fileno()], [], [], 30)[0]
    wait_for(lambda: load.done)

    def is_quiet() -> bool:
        """It may have been told of the end just now, of which the load itself knew before."""
        sides.transports.clear()
        return not select.select([sides.transports.fileno()], [], [], 0)[0]

    wait_for(is_quiet)


def test_a_transport_that_was_not_offered_is_not_begun(sides: Sides) -> None:
    with pytest.raises(ValueError, match="'pigeons' was not offered"):
        sides.stores.begin("1", "pigeons", lambda stored: None)
