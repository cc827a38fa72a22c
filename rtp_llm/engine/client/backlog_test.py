# SPDX-License-Identifier: Apache-2.0
"""A consumer that reads nothing holds up nobody, and what waits for it has an end."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from rtp_llm.engine.client import backlog
from rtp_llm.engine.client.process_client import ProcessClient
from rtp_llm.engine.client.stream import TokenStream
from rtp_llm.engine.messages import AbortRequest, AddRequest, RequestError, SequenceDelta
from rtp_llm.engine.messages import TokenLogprob as Entry
from rtp_llm.request.sampling_params import SamplingParams

_numbers = itertools.count(1)


class Link:
    """Takes what is sent to the engine."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def connected() -> tuple[ProcessClient, Link]:
    client, link = ProcessClient(), Link()
    client._link = link  # type: ignore[assignment]
    client.ready = SimpleNamespace(max_running=1000, max_queued=1000)  # type: ignore[assignment]
    return client, link


def ask(client: ProcessClient, **params: Any) -> TokenStream:
    request = AddRequest(
        request_id=next(_numbers),
        prompt_token_ids=[1],
        params=SamplingParams(max_tokens=10**6, **params),
    )
    return client.generate(request)


def step(stream: TokenStream, tokens: int = 1, top: int | None = None) -> None:
    """One token, or several, of each sequence that goes on."""
    entries = None
    if top is not None:
        entries = [Entry(7, -1.0, [(7, -1.0)] * top) for _ in range(tokens)]
    for _, index in stream.open_sequences():
        stream.add(SequenceDelta(index=index, token_ids=[7] * tokens, logprobs=entries))


def waiting(stream: TokenStream) -> int:
    return sum(len(delta.token_ids) for delta in stream._waiting.values())


@pytest.mark.parametrize(
    ("n", "tokens", "top"), [(1, 1, None), (1, 3, None), (128, 1, None), (4, 1, 20)]
)
def test_what_waits_of_a_request_has_an_end(n: int, tokens: int, top: int | None) -> None:
    async def play() -> None:
        client, link = connected()
        logprobs = {} if top is None else {"logprobs": top}
        stream, other = ask(client, n=n, **logprobs), ask(client)
        most, seen = backlog.MAX_PER_REQUEST // (1 + (top or 0)), 0
        for _ in range(most // (n * tokens) + 65):
            step(stream, tokens, top)
            seen = max(seen, waiting(stream))
        assert most - 64 * n <= seen <= most + 64 * n * tokens
        assert not stream._waiting and client._backlog.total == 0, "nothing is kept of it"
        aborted = [message for message in link.sent if isinstance(message, AbortRequest)]
        assert [len(message.sequences) for message in aborted] == [n]
        with pytest.raises(RequestError, match="read too slowly") as reported:
            await anext(stream)
        assert reported.value.kind == "stalled"
        step(other)
        assert (await anext(other)).token_ids == [7]
        assert client.num_sequences == 1

    asyncio.run(play())


def test_what_waits_of_all_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is furthest behind is ended; the others lose nothing."""
    monkeypatch.setattr(backlog, "MAX_IN_ALL", 10_000)

    async def play() -> None:
        client, link = connected()
        streams = [ask(client) for _ in range(8)]
        for turn in range(3000):
            for stream in streams[: 1 + 7 * (turn > 600)]:
                step(stream)
            assert client._backlog.total <= 10_000
            assert sum(map(waiting, streams)) <= 10_000 + 64 * 8
        assert streams[0].finished and not streams[7].finished
        assert 0 < sum(isinstance(message, AbortRequest) for message in link.sent) < 8
        delta = await anext(streams[7])
        assert len(delta.token_ids) == 3000 - 601

    asyncio.run(play())


def test_who_catches_up_has_no_backlog() -> None:
    async def play() -> None:
        client, link = connected()
        stream = ask(client, n=2)
        read = 0
        for turn in range(1, backlog.MAX_PER_REQUEST):
            step(stream)
            if turn % 500 == 0:
                read += sum([len((await anext(stream)).token_ids) for _ in range(2)])
                assert client._backlog.total == 0
        assert read >= 2 * (backlog.MAX_PER_REQUEST - 1000)
        assert not any(isinstance(message, AbortRequest) for message in link.sent)

    asyncio.run(play())
