# SPDX-License-Identifier: Apache-2.0
"""Python bindings of the cache store and of the transfer, in one process over loopback."""

from __future__ import annotations

import contextlib
import gc
import select
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rtp_llm.native import load_runtime
from rtp_llm.testing.kept_port import kept_port

if TYPE_CHECKING:
    from rtp_llm._runtime import CacheStore, Load, TransferClient, TransferServer

runtime = load_runtime()

TIMEOUT = 300.0  # of what is meant to come; never waited for in full
SOON = 0.2  # of what is meant to time out
Bytes = NDArray[np.uint8]


def blocks_of(memory: Bytes, heads: slice | None = None, key: int = 0) -> NDArray[np.int64]:
    """The blocks of ``memory`` uint8 [N, tokens, heads, bytes]; of some heads only, if so asked."""
    part = memory if heads is None else memory[:, :, heads]
    count, tokens = part.shape[:2]
    array = np.empty((count, 7), dtype=np.int64)
    array[:, 0] = 0
    array[:, 1] = np.arange(count)
    array[:, 2] = np.arange(count) * 977 - 5 + key
    array[:, 3] = part.ctypes.data + np.arange(count) * part.strides[0]
    array[:, 4:] = tokens, part.shape[2] * part.shape[3], part.strides[1]
    return array


def fresh(*shape: int) -> Bytes:
    return np.random.default_rng().integers(0, 256, shape, dtype=np.uint8)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def readable(source: CacheStore | TransferClient) -> bool:
    return bool(select.select([source], [], [], 0)[0])


def failed(load: Load, code: str, *words: str) -> None:
    assert load.wait(TIMEOUT)
    assert load.code == code
    for word in (*words, load.address, load.request, f"ms: {code}"):
        assert word in load.message


def told_too_late(ask: Callable[[], Load]) -> Load:
    """A load of which prefill said that it is too late. It says so a little before decode gives up
    by itself; on a busy machine that is too late now and then, and it is asked again."""
    end = time.monotonic() + TIMEOUT
    while (load := ask()).wait(TIMEOUT) and load.code == "prefill_timeout":
        assert time.monotonic() < end
    return load


@pytest.fixture
def address() -> Iterator[str]:
    """Where nobody is, unless a test makes a server there."""
    with kept_port() as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def store() -> CacheStore:
    made: CacheStore = runtime.CacheStore()
    return made


@pytest.fixture
def server(store: CacheStore) -> Iterator[TransferServer]:
    made: TransferServer = runtime.TransferServer(store, fingerprint="model, layout")
    yield made
    made.close()
    assert store.stats()["waiting_loads"] == store.stats()["sending"] == 0


def make_client(**options: Any) -> TransferClient:
    made: TransferClient = runtime.TransferClient(
        **({"fingerprint": "model, layout", "connect_timeout": TIMEOUT} | options)
    )
    return made


@pytest.fixture
def client() -> Iterator[TransferClient]:
    made = make_client()
    yield made
    made.close()
    assert made.stats()["loads"] == made.stats()["outstanding"] == 0


def test_layers_arrive_one_by_one_while_prefill_still_runs(
    store: CacheStore, server: TransferServer, client: TransferClient
) -> None:
    source, target = fresh(4, 9, 16, 2, 64), fresh(4, 9, 16, 2, 64)
    layers = [(layer, blocks_of(target[layer])) for layer in range(4)]
    load = client.load(server.address, "r", layers, timeout=TIMEOUT)
    for layer in (2, 0, 1, 3):
        assert not load.done
        assert store.store("r", layer, blocks_of(source[layer][:5]))
        assert load.poll() == []
        assert store.store("r", layer, blocks_of(source[layer]))  # some of them once more
        arrived: list[int] = []
        until(lambda into=arrived: into.extend(load.poll()) or into != [])  # type: ignore[misc]
        assert arrived == [layer]
        assert np.array_equal(source[layer], target[layer])
        until(lambda: readable(client))
    assert load.wait(TIMEOUT)
    assert (load.code, load.message) == ("none", "")
    # The load knows of its end before it is told of by the descriptor.
    until(lambda: client.clear() or not readable(client))  # type: ignore[func-returns-value]
    store.end("r")
    until(lambda: not store.busy("r"))
    assert store.take_released() == ["r"]
    assert store.stats()["blocks"] == 0


@pytest.mark.parametrize("checksums", [True, False])
def test_big_layers_come_in_parts_over_all_connections(
    store: CacheStore, server: TransferServer, checksums: bool
) -> None:
    client = make_client(checksums=checksums, connections=3)
    source, target = fresh(2, 300, 64, 8, 64), fresh(2, 300, 64, 8, 64)
    for layer in range(2):
        store.store("r", layer, blocks_of(source[layer]))
    layers = [(layer, blocks_of(target[layer])) for layer in range(2)]
    load = client.load(server.address, "r", layers, timeout=TIMEOUT)
    assert load.wait(TIMEOUT)
    assert load.code == "none"
    assert sorted(load.poll()) == [0, 1]
    assert np.array_equal(source, target)
    assert client.stats()["connections"] == 3
    assert client.stats()["bytes"] == source.nbytes
    until(lambda: server.stats()["bytes"] == source.nbytes)  # counted after they were sent


def test_two_decode_ranks_take_their_heads_from_one(
    store: CacheStore, server: TransferServer, client: TransferClient
) -> None:
    source = fresh(5, 16, 4, 32)
    store.store("r", 0, blocks_of(source))
    for rank in range(2):
        target = fresh(5, 16, 2, 32)
        layers = [(0, blocks_of(target))]
        load = client.load(server.address, "r", layers, timeout=TIMEOUT, partition=(2, rank))
        assert load.wait(TIMEOUT)
        assert load.code == "none"
        assert np.array_equal(target, source[:, :, 2 * rank : 2 * rank + 2])


def test_one_decode_rank_takes_its_heads_from_two(client: TransferClient) -> None:
    target = fresh(5, 16, 4, 32)
    for rank in range(2):
        store = runtime.CacheStore()
        server = runtime.TransferServer(store, fingerprint="model, layout")
        source = fresh(5, 16, 2, 32)
        store.store("r", 0, blocks_of(source))
        heads = slice(2 * rank, 2 * rank + 2)
        before = target.copy()
        load = client.load(server.address, "r", [(0, blocks_of(target, heads))], timeout=TIMEOUT)
        assert load.wait(TIMEOUT)
        assert load.code == "none"
        before[:, :, heads] = source
        assert np.array_equal(target, before)
        server.close()


def test_shapes_that_do_not_agree_are_refused_with_both(
    store: CacheStore, server: TransferServer, client: TransferClient
) -> None:
    source, target = fresh(3, 16, 4, 32), fresh(3, 16, 3, 32)
    store.store("r", 7, blocks_of(source, slice(0, 3)))
    load = client.load(server.address, "r", [(7, blocks_of(target))], timeout=TIMEOUT)
    assert load.wait(TIMEOUT)
    assert load.code == "none"
    load = client.load(
        server.address, "r", [(7, blocks_of(target))], timeout=TIMEOUT, partition=(2, 1)
    )
    failed(load, "invalid_params", "layer 7", "16 rows of 96 bytes", "slice 1 of 2")


def test_a_block_of_other_tokens_never_matches(
    store: CacheStore, server: TransferServer, client: TransferClient
) -> None:
    source, target = fresh(3, 16, 4, 32), fresh(3, 16, 4, 32)
    before = target.copy()
    store.store("r", 0, blocks_of(source))
    layers = [(0, blocks_of(target, key=1))]
    load = told_too_late(lambda: client.load(server.address, "r", layers, timeout=SOON))
    failed(load, "buffer_timeout")
    assert np.array_equal(target, before)


def test_a_store_that_comes_too_late_is_a_time_out(
    store: CacheStore, server: TransferServer, client: TransferClient
) -> None:
    target = fresh(2, 3, 16, 4, 32)
    store.store("r", 0, blocks_of(fresh(3, 16, 4, 32)))
    layers = [(layer, blocks_of(target[layer])) for layer in range(2)]
    load = told_too_late(lambda: client.load(server.address, "r", layers, timeout=SOON))
    failed(load, "buffer_timeout", "layer 1, plane 0, position 0 and 2 after it")
    assert load.poll() == [0]
    until(lambda: store.stats()["waiting_loads"] == 0)


def test_a_peer_that_says_nothing_is_a_time_out(client: TransferClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        load = client.load(address, "r", [(0, blocks_of(fresh(1, 1, 1, 8)))], timeout=SOON)
        failed(load, "prefill_timeout")


def test_nobody_there_and_a_peer_that_hangs_up(client: TransferClient, address: str) -> None:
    layers = [(0, blocks_of(fresh(1, 1, 1, 8)))]
    with socket.create_server(("127.0.0.1", int(address.split(":")[1]))) as listener:
        load = client.load(address, "r", layers, timeout=TIMEOUT)
        listener.accept()[0].close()
        failed(load, "connect_failed", "closed the connection")
    failed(client.load(address, "r", layers, timeout=TIMEOUT), "connect_failed", "refused")
    failed(client.load("nonsense", "r", layers, timeout=TIMEOUT), "connect_failed", "host:port")
    with pytest.raises(runtime.TransferError, match="refused") as caught:
        client.connect(address)
    assert caught.value.code == "connect_failed"


def test_a_slow_start_is_no_connection(server: TransferServer) -> None:
    hasty = make_client(connect_timeout=SOON)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(runtime.TransferError, match="no answer within 200 ms"):
            hasty.connect(address, timeout=TIMEOUT)

    def connects() -> bool:  # a server that is there may be slow, too
        with contextlib.suppress(runtime.TransferError):
            return hasty.connect(server.address) is None
        return False

    until(connects)


def test_another_model_is_refused_with_both_fingerprints(
    server: TransferServer, client: TransferClient
) -> None:
    client.connect(server.address)
    other = make_client(fingerprint="another model")
    with pytest.raises(runtime.TransferError) as caught:
        other.connect(server.address)
    assert caught.value.code == "mismatch"
    for side in ('prefill has version 1 and "model, layout"', 'version 1 and "another model"'):
        assert side in str(caught.value)
    load = other.load(server.address, "r", [(0, blocks_of(fresh(1, 1, 1, 8)))], timeout=TIMEOUT)
    failed(load, "mismatch", "another model")
    assert server.stats()["mismatches"] >= 2


def test_an_ended_request_fails_what_waits_and_drops_what_comes(
    store: CacheStore, server: TransferServer, client: TransferClient
) -> None:
    layers = [(0, blocks_of(fresh(3, 16, 4, 32)))]
    load = client.load(server.address, "r", layers, timeout=TIMEOUT)
    until(lambda: store.stats()["waiting_loads"] == 1)
    store.end("r")
    store.end("r")
    failed(load, "request_ended")
    assert not store.store("r", 0, blocks_of(fresh(3, 16, 4, 32)))
    failed(client.load(server.address, "r", layers, timeout=TIMEOUT), "request_ended")
    assert store.take_released() == ["r"]
    assert store.take_released() == []
    assert store.stats()["dropped_stores"] == 1


def test_a_request_nobody_ends_expires() -> None:
    store: CacheStore = runtime.CacheStore(expiry=0.001)
    store.store("r", 0, blocks_of(fresh(3, 16, 4, 32)))
    assert store.busy("r")
    until(lambda: store.expire() or readable(store))  # type: ignore[func-returns-value]
    assert store.take_released() == ["r"]
    assert store.stats()["expired"] == 1


def test_owners_live_until_the_request_is_released(store: CacheStore) -> None:
    class Owner:
        pass

    owner = Owner()
    watched = weakref.ref(owner)
    store.store("r", 0, blocks_of(fresh(3, 16, 4, 32)), owner)
    del owner
    gc.collect()
    assert watched() is not None
    store.end("r")
    assert watched() is None


def test_cancel_ends_a_load_and_its_waiting(
    store: CacheStore, server: TransferServer, client: TransferClient
) -> None:
    target = fresh(3, 16, 4, 32)
    before = target.copy()
    load = client.load(server.address, "r", [(0, blocks_of(target))], timeout=TIMEOUT)
    until(lambda: store.stats()["waiting_loads"] == 1)
    load.cancel()
    failed(load, "cancelled")
    until(lambda: store.stats()["waiting_loads"] == 0)
    store.store("r", 0, blocks_of(fresh(3, 16, 4, 32)))
    assert np.array_equal(target, before)
    until(lambda: server.stats()["cancelled"] == 1)


def test_a_killed_connection_fails_the_load_and_the_next_one_connects_again(
    store: CacheStore, client: TransferClient, address: str
) -> None:
    first = runtime.TransferServer(store, address, fingerprint="model, layout")
    target = fresh(3, 16, 4, 32)
    load = client.load(first.address, "r", [(0, blocks_of(target))], timeout=TIMEOUT)
    until(lambda: store.stats()["waiting_loads"] == 1)
    first.close()
    failed(load, "peer_lost")
    assert store.stats()["waiting_loads"] == 0
    second = runtime.TransferServer(store, first.address, fingerprint="model, layout")
    source = fresh(3, 16, 4, 32)
    store.store("r", 0, blocks_of(source))
    load = client.load(second.address, "r", [(0, blocks_of(target))], timeout=TIMEOUT)
    assert load.wait(TIMEOUT)
    assert (load.code, np.array_equal(source, target)) == ("none", True)


def test_limits(store: CacheStore, server: TransferServer) -> None:
    layers = [(0, blocks_of(fresh(3, 16, 4, 32)))]
    narrow = make_client(max_loads=1)
    first = narrow.load(server.address, "r", layers, timeout=TIMEOUT)
    failed(narrow.load(server.address, "r", layers, timeout=TIMEOUT), "queue_full")
    narrow.close()
    failed(first, "cancelled", "closed")
    with pytest.raises(RuntimeError, match="after close"):
        narrow.load(server.address, "r", layers, timeout=TIMEOUT)
    small = runtime.CacheStore(max_waiting_blocks=2)
    other = runtime.TransferServer(small, fingerprint="model, layout")
    client = make_client()
    failed(client.load(other.address, "r", layers, timeout=TIMEOUT), "queue_full")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda array: array[:, :6].copy(), "N, 7"),
        (lambda array: array[0], "N, 7"),
        (lambda array: array * [1, 1, 1, 0, 1, 1, 1], "null"),
        (lambda array: array * [1, 1, 1, 1, 0, 1, 1], "rows"),
        (lambda array: array * [1, 1, 1, 1, 1, -1, 1], "row_bytes"),
        (lambda array: array * [1, 1, 1, 1, 1, 1, 0], "row_stride"),
        (lambda array: array - [1, 0, 0, 0, 0, 0, 0], "plane"),
    ],
)
def test_blocks_that_make_no_sense(
    store: CacheStore, change: Callable[[NDArray[np.int64]], NDArray[np.int64]], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        store.store("r", 0, change(blocks_of(fresh(3, 16, 4, 32))))
    assert store.stats()["requests"] == 0


def test_arguments_that_make_no_sense(store: CacheStore, client: TransferClient) -> None:
    layers = [(0, blocks_of(fresh(3, 16, 4, 32)))]
    for bad in ({"timeout": 0.0}, {"timeout": 1.0, "partition": (2, 2)}):
        with pytest.raises(ValueError):
            client.load("127.0.0.1:1", "r", layers, **bad)
    for request, wanted in (("", layers), ("r" * 257, layers), ("r", [])):
        with pytest.raises(ValueError):
            client.load("127.0.0.1:1", request, wanted, timeout=1.0)
    with pytest.raises(ValueError, match="fingerprint"):
        runtime.TransferServer(store, fingerprint="")
    with pytest.raises(RuntimeError, match=r"cannot listen at 203\.0\.113\.1:1"):
        runtime.TransferServer(store, "203.0.113.1:1", fingerprint="nobody's address")
