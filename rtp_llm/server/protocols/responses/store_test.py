# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtp_llm.server.protocols.responses.store import ResponseStore, StoredItem, StoredResponse
from rtp_llm.server.types.errors import ApiError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def response(name: str, size: int = 10, owner: str = "me", **fields: object) -> StoredResponse:
    return StoredResponse(id=name, owner=owner, body=b"x" * size, **fields)  # type: ignore[arg-type]


def kept(store: ResponseStore, *names: str) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(store.find(name, "me").id)
        except ApiError as error:
            assert error.status == 404
    return found


def test_the_oldest_makes_way_by_count_and_by_bytes() -> None:
    store = ResponseStore(2, 100, 60)
    for name in ("a", "b", "c"):
        assert store.put(response(name))
    assert kept(store, "a", "b", "c") == ["b", "c"]
    assert store.put(response("d", 85))
    assert kept(store, "b", "c", "d") == ["c", "d"]
    assert not store.put(response("e", 101))
    assert kept(store, "c", "d", "e") == ["c", "d"]
    assert store.bytes == 95


def test_what_is_old_is_gone() -> None:
    clock = Clock()
    store = ResponseStore(9, 100, 60, clock)
    store.put(response("a"))
    clock.now = 59
    assert kept(store, "a") == ["a"]
    store.put(response("a"))  # its new state
    clock.now = 118
    assert kept(store, "a") == ["a"]
    clock.now = 119
    assert kept(store, "a") == []
    assert store.bytes == 0


def test_one_key_sees_nothing_of_another() -> None:
    store = ResponseStore(9, 1000, 60)
    store.put(response("a", owner="other", outputs=[StoredItem("m", b"{}")]))
    assert kept(store, "a") == []
    assert store.find("a", "other").id == "a"
    assert store.find_items({"m"}, "me") == {}
    assert store.find_items({"m"}, "other") == {"m": b"{}"}


def test_what_is_still_generated_stays() -> None:
    clock = Clock()
    store = ResponseStore(1, 100, 60, clock)
    running = response("a", live=object())
    assert store.put(running)
    clock.now = 1000
    assert not store.put(response("b"))
    assert kept(store, "a", "b") == ["a"]
    running.live = None
    assert store.put(response("b"))


def test_a_store_that_is_off_says_so() -> None:
    store = ResponseStore(0, 100, 60)
    assert not store.enabled
    assert not store.put(response("a"))
    with pytest.raises(ApiError, match="--max-stored-responses") as error:
        store.find("a", "me", param="previous_response_id")
    assert error.value.param == "previous_response_id"


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 60), st.booleans())))
def test_its_bounds_hold_whatever_is_put(puts: list[tuple[str, int, bool]]) -> None:
    store = ResponseStore(3, 100, 60)
    for name, size, removed in puts:
        if removed:
            store.remove(name)
        elif store.put(response(name, size)):
            assert store.find(name, "me").size == size
        assert len(store) <= 3
        assert store.bytes <= 100
        assert store.bytes == sum(store.find(n, "me").size for n in kept(store, *"abcde"))
