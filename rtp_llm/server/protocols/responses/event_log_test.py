# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import random

import pytest

from rtp_llm.server.protocols.responses import event_log
from rtp_llm.server.protocols.responses.event_log import EventLog, EventsLostError
from rtp_llm.server.protocols.responses.events import TextDelta
from rtp_llm.testing.server.responses_events import read_events
from rtp_llm.testing.server.serving import run


def delta(number: int) -> TextDelta:
    text = f"{number} \n\n" + "x" * (number % 50)
    return TextDelta(sequence_number=number, output_index=0, item_id="m", delta=text)


async def numbers(log: EventLog, after: int) -> list[int]:
    data = b"".join([piece async for piece in log.after(after)]).decode()
    return [each["sequence_number"] for each in read_events(data, after + 1)] if data else []


@run
async def test_any_number_of_readers_begin_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_BLOCK_BYTES", 1000)
    reserved: list[int] = []
    log = EventLog(lambda size: not reserved.append(size))
    readers = {}
    at, rolls = 0, random.Random(1)
    while at < 300:
        more = rolls.randrange(1, 9)
        log.add([delta(number) for number in range(at, at + more)])
        at += more
        if rolls.random() < 0.3:
            after = rolls.randrange(-1, at + 5)
            readers[asyncio.create_task(numbers(log, after))] = after
        await asyncio.sleep(0)
    log.end()
    readers |= {asyncio.create_task(numbers(log, n)): n for n in (-1, 0, 77, at - 1, at + 9)}
    assert len(readers) > 10
    for reader, after in readers.items():
        assert await reader == [*range(after + 1, at)]
    assert log.whole and log.size == sum(reserved) < 300 * 60


@run
async def test_without_room_only_who_follows_closely_gets_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_log, "_BLOCK_BYTES", 500)
    log = EventLog(lambda size: False)
    follower = asyncio.create_task(numbers(log, -1))
    for number in range(100):
        log.add([delta(number)])
        await asyncio.sleep(0)
    with pytest.raises(EventsLostError):
        await numbers(log, 5)
    log.end()
    assert await follower == [*range(100)]
    assert not log.whole
