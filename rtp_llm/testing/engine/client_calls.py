# SPDX-License-Identifier: Apache-2.0
"""What tests of engine clients ask and wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from rtp_llm.engine.messages import AddRequest, SequenceDelta
from rtp_llm.request.sampling_params import SamplingParams


class NumbersRequests(Protocol):
    """A client of one engine, of several, or one that restarts them."""

    def new_request_id(self) -> int:
        """An id that was not used before."""


def request(client: NumbersRequests, *prompt: int, **params: Any) -> AddRequest:
    """A request of these token ids."""
    return AddRequest(
        request_id=client.new_request_id(),
        prompt_token_ids=list(prompt),
        params=SamplingParams(**params),
    )


async def collect(stream: AsyncIterator[SequenceDelta]) -> dict[int, list[int]]:
    """The tokens of each sequence, once all have ended."""
    tokens: dict[int, list[int]] = {}
    async for delta in stream:
        tokens.setdefault(delta.index, []).extend(delta.token_ids)
    return tokens


async def eventually(condition: Callable[[], bool]) -> None:
    """Until it holds; the test has a deadline."""
    while not condition():
        await asyncio.sleep(0.01)
