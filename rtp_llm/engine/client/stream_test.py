# SPDX-License-Identifier: Apache-2.0
"""One request's stream without an engine: when the prompt's log-probabilities come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rtp_llm.engine.client.stream import TokenStream
from rtp_llm.engine.messages import AddRequest, SequenceDelta, TokenLogprob
from rtp_llm.request.sampling_params import SamplingParams

ENTRY = TokenLogprob(6, -1.0, [])


def deltas_of(
    prompt: list[int], feed: Callable[[TokenStream], None], **params: int
) -> list[SequenceDelta]:
    """What a consumer reads of a stream into which ``feed`` put the engine's messages."""

    async def run() -> list[SequenceDelta]:
        wanted = SamplingParams(**params)
        request = AddRequest(request_id=1, prompt_token_ids=prompt, params=wanted)
        stream = TokenStream(request, asyncio.get_running_loop(), lambda _: None)
        feed(stream)
        return [delta async for delta in stream]

    return asyncio.run(run())


def last(index: int) -> SequenceDelta:
    return SequenceDelta(index=index, token_ids=[9], finish_reason="length")


def test_they_come_once_with_the_first_tokens() -> None:
    def feed(stream: TokenStream) -> None:
        stream.add_prompt_logprobs(1, [ENTRY])
        stream.add(last(1))
        stream.add(last(0))

    first, second = deltas_of([5, 6], feed, n=2, prompt_logprobs=0)
    assert (first.index, first.prompt_logprobs) == (1, [None, ENTRY])
    assert (second.index, second.prompt_logprobs) == (0, None)


def test_they_outlive_a_first_sequence_that_was_aborted() -> None:
    def feed(stream: TokenStream) -> None:
        stream.abort(0)
        stream.add_prompt_logprobs(1, [ENTRY])
        stream.add(last(1))

    aborted, other = deltas_of([5, 6], feed, n=2, prompt_logprobs=0)
    assert (aborted.finish_reason, aborted.prompt_logprobs) == ("abort", None)
    assert other.prompt_logprobs == [None, ENTRY]


@pytest.mark.parametrize(("params", "expected"), [({"prompt_logprobs": 1}, [None]), ({}, None)])
def test_a_prompt_of_one_token_has_none_to_report(
    params: dict[str, int], expected: list[None] | None
) -> None:
    (delta,) = deltas_of([5], lambda stream: stream.add(last(0)), **params)
    assert delta.prompt_logprobs == expected
