# SPDX-License-Identifier: Apache-2.0
"""What is remembered of grammars: texts, refusals, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from rtp_llm.server.offload import grammars
from rtp_llm.server.offload.grammars import Grammars
from rtp_llm.server.offload.lane import OverrunError
from rtp_llm.server.turn.grammar_source import GrammarSource
from rtp_llm.server.turn.prepared import PreparedBody
from rtp_llm.server.types.errors import ApiError, bad_request, unavailable
from rtp_llm.server.types.openai_bodies import StructuredOutputs
from rtp_llm.testing.server.serving import run


def source(pattern: str) -> bytes:
    return GrammarSource(name="regex", outputs=StructuredOutputs(regex=pattern)).encode()


class Maker:
    """Makes grammars in place of a process, and counts them."""

    def __init__(self, error: Exception | None = None, text: str = "start: /a/") -> None:
        self.count, self.error, self.text = 0, error, text

    async def __call__(self) -> PreparedBody:
        self.count += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return PreparedBody(self.text.encode())


async def refused(known: Grammars, text: bytes, maker: Maker) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await known.find(text, "a", maker)
    return caught.value


@run
async def test_a_grammar_is_made_once() -> None:
    known, maker = Grammars(), Maker()
    found = await asyncio.gather(*(known.find(source("a"), "a", maker) for _ in range(5)))
    assert {each.text for each in found} == {"start: /a/"}
    await known.find(source("a"), "b", maker)
    assert maker.count == 1
    await known.find(source("b"), "b", maker)
    assert maker.count == 2


@run
async def test_a_client_does_not_wait_in_the_queue_of_another() -> None:
    known, maker, waits = Grammars(), Maker(), asyncio.Event()

    async def late() -> PreparedBody:
        await waits.wait()
        return await maker()

    first = asyncio.create_task(known.find(source("a"), "a", late))
    await asyncio.sleep(0)
    assert (await known.find(source("a"), "b", maker)).text == maker.text
    waits.set()
    assert (await first).text == maker.text


@run
async def test_refusals_cost_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Grammars()
    for at, error in enumerate(
        (
            OverrunError("more than 5 s", late=True),
            OverrunError("more than 208 MiB of memory"),
            bad_request("regex: unknown.", "regex", "invalid_grammar"),
        )
    ):
        maker = Maker(error)
        answers = [await refused(known, source(str(at)), maker) for _ in range(3)]
        assert maker.count == 1
        assert {(each.status, each.param, each.code) for each in answers} == {
            (400, "regex", "invalid_grammar")
        }
        assert len({each.message for each in answers}) == 1
    late = "regex: compiling the grammar takes more than 5 s; make it simpler."
    assert (await refused(known, source("0"), Maker())).message == late
    monkeypatch.setattr(grammars.time, "monotonic", lambda: float("1e12"))
    assert (await known.find(source("0"), "a", Maker())).text, "the machine may have been busy"
    assert await refused(known, source("1"), Maker())


@run
async def test_a_server_without_room_is_not_remembered() -> None:
    known = Grammars()
    assert (
        await refused(known, source("a"), Maker(unavailable("full", "overloaded")))
    ).status == 503
    assert (await known.find(source("a"), "a", Maker())).text


@run
async def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_KNOWN", 3)
    monkeypatch.setattr(grammars, "MAX_KNOWN_BYTES", 100)
    known, small, large = Grammars(), Maker(), Maker(text="a" * 60)
    for pattern in "abcab":
        await known.find(source(pattern), "a", small)
    assert small.count == 3
    await known.find(source("d"), "a", small)
    await known.find(source("c"), "a", small)
    assert small.count == 5, "c was used longest ago"
    for pattern in "xyx":
        await known.find(source(pattern), "a", large)
    assert large.count == 3
