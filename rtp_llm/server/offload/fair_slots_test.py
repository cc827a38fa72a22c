# SPDX-License-Identifier: Apache-2.0
"""Slots that clients share: who waits for whom, and who is refused."""

from __future__ import annotations

import asyncio

import pytest

from rtp_llm.server.keys.key_file import Key
from rtp_llm.server.keys.key_ring import ACCOUNT, client_of, unnamed
from rtp_llm.server.keys.quota import Account
from rtp_llm.server.offload import fair_slots
from rtp_llm.server.offload.fair_slots import FairSlots
from rtp_llm.server.types.errors import ApiError
from rtp_llm.testing.server.serving import run


class Bodies:
    """Bodies that keep their slots until they are let go."""

    def __init__(self, slots: int) -> None:
        self.slots = FairSlots(slots)
        self.running: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, client: str, name: str, size: int = 1) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._hold(client, name, size))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _hold(self, client: str, name: str, size: int) -> None:
        async with self.slots.slot(client, size):
            self.running.append(name)
            await self._ends[name].wait()
            self.running.remove(name)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait({self._tasks[name]})
        await asyncio.sleep(0)

    def refusal(self, name: str) -> ApiError:
        with pytest.raises(ApiError) as caught:
            self._tasks[name].result()
        return caught.value


@run
async def test_one_client_leaves_a_slot_to_others() -> None:
    bodies = Bodies(3)
    for name in ("a1", "a2", "a3", "a4"):
        await bodies.begin("a", name)
    assert bodies.running == ["a1", "a2"]
    await bodies.begin("b", "b1")
    assert bodies.running == ["a1", "a2", "b1"]
    await bodies.end("a1")
    assert bodies.running == ["a2", "b1", "a3"]


@run
async def test_clients_take_turns_at_one_slot_the_shortest_body_of_each_first() -> None:
    bodies = Bodies(1)
    await bodies.begin("a", "a1")
    for client, name, size in (
        ("a", "long", 9),
        ("a", "short", 2),
        ("b", "b1", 5),
        ("b", "b2", 7),
        ("c", "c1", 8),
    ):
        await bodies.begin(client, name, size)
    order = []
    for _ in range(6):
        (name,) = bodies.running
        order.append(name)
        await bodies.end(name)
    assert order == ["a1", "short", "b1", "c1", "long", "b2"]


@run
async def test_whoever_gives_up_takes_no_slot_with_them() -> None:
    bodies = Bodies(1)
    for name in ("a1", "a2", "a3"):
        await bodies.begin("a", name)
    await bodies.cancel("a2")
    await bodies.cancel("a1")
    assert bodies.running[-1] == "a3"
    await bodies.end("a3")
    await bodies.begin("b", "b1")
    assert bodies.running[-1] == "b1"


@run
async def test_the_client_with_most_of_what_waits_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_slots, "MAX_WAITING", 3)
    monkeypatch.setattr(fair_slots, "MAX_WAITING_BYTES", 100)
    bodies = Bodies(1)
    await bodies.begin("a", "a1")
    for name, size in (("a2", 10), ("a3", 30), ("a4", 20), ("a5", 1)):
        await bodies.begin("a", name, size)
    assert bodies.refusal("a5").status == 503
    await bodies.begin("b", "b1", 10)
    assert bodies.refusal("a3").code == "overloaded"
    await bodies.end("a1")
    assert bodies.running == ["a2"]


def test_a_client_is_a_named_key_or_else_an_address() -> None:
    named = Account(Key(name="team", sha256="0" * 64))
    scope = {"client": ("10.0.0.7", 4711)}
    assert client_of({**scope, ACCOUNT: named}) == "key team"
    assert client_of({**scope, ACCOUNT: unnamed()}) == client_of(scope) == "address 10.0.0.7"
    assert client_of({"client": None}) == "address "
