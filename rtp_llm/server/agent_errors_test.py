# SPDX-License-Identifier: Apache-2.0
"""Refusals that no body causes: overload, quotas, a dead engine; in the shape of each protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from rtp_llm.engine.messages import RequestError
from rtp_llm.server.keys.keys_test import A, B
from rtp_llm.testing.server.agent_clients import agents
from rtp_llm.testing.server.keys import entry, key_file
from rtp_llm.testing.server.serving import TEXT, run

SAYS: Any = [{"role": "user", "content": "Hello"}]


@run
async def test_a_full_queue() -> None:
    async with agents() as case:
        case.engine.refuse = RequestError("queue_full", "64 requests wait already")
        with pytest.raises(openai.RateLimitError, match="64 requests wait already"):
            await case.openai.responses.create(model="demo", input="Hello")
        with pytest.raises(anthropic.RateLimitError, match="64 requests wait already") as error:
            await case.anthropic.messages.create(model="demo", max_tokens=9, messages=SAYS)
        assert error.value.type == "rate_limit_error"
        assert error.value.response.headers["retry-after"]


@run
async def test_a_dead_engine() -> None:
    async with agents() as case:
        case.engine.die("killed by the test")
        with pytest.raises(openai.InternalServerError, match="killed by the test") as dead:
            await case.openai.responses.create(model="demo", input="Hello")
        assert (dead.value.status_code, dead.value.code) == (503, "engine_dead")
        with pytest.raises(anthropic.APIStatusError, match="killed by the test") as error:
            await case.anthropic.messages.create(model="demo", max_tokens=9, messages=SAYS)
        assert (error.value.status_code, error.value.type) == (503, "overloaded_error")


@run
async def test_a_step_that_fails() -> None:
    async with agents() as case:
        case.engine.script = lambda request, index: [9, -2]  # the model computes NaN
        with pytest.raises(openai.InternalServerError):
            await case.openai.responses.create(model="demo", input="Hello")
        with pytest.raises(anthropic.InternalServerError) as error:
            await case.anthropic.messages.create(model="demo", max_tokens=9, messages=SAYS)
        assert (error.value.status_code, error.value.type) == (500, "api_error")


@run
async def test_quotas_count_all_protocols_and_the_background(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", entry(A, "a", tokens_per_minute=200), entry(B, "b"))
    async with agents(TEXT, api_key_file=path, max_stored_responses=4) as case:
        case.engine.step_seconds = 0.02
        ask = case.openai.with_options(api_key=A).responses.create
        begun = await ask(model="demo", input="Hello", max_output_tokens=99, background=True)
        with pytest.raises(openai.RateLimitError, match="200 tokens a minute"):
            await ask(model="demo", input="Hello", max_output_tokens=99)
        claude = case.anthropic.with_options(api_key=A)
        with pytest.raises(anthropic.RateLimitError, match="200 tokens a minute"):
            await claude.messages.create(model="demo", max_tokens=150, messages=SAYS)
        while case.server.state.answers:
            await asyncio.sleep(0.001)
        account = next(each for each in case.server.state.keys.named if each.key.name == "a")
        done = await case.openai.with_options(api_key=A).responses.retrieve(begun.id)
        assert done.usage is not None and account.completion_tokens == done.usage.output_tokens
        assert account.open == 0
        with pytest.raises(openai.NotFoundError):
            await case.openai.with_options(api_key=B).responses.retrieve(begun.id)
