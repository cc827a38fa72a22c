# SPDX-License-Identifier: Apache-2.0
"""Two whole servers: the same text as one, and what is left when either is killed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rtp_llm.testing.disagg.servers import Server, complete, servers, wait_for_peer
from rtp_llm.testing.kept_port import kept_port

KILLS = int(os.environ.get("RTP_LLM_KILLS", "5"))
ASKING = 3
STORY = "Once upon a time there was a small engine that liked long stories. "


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    with kept_port() as port, servers(port=port) as both:
        yield both


def test_text_is_that_of_one_server(pair: tuple[Server, Server]) -> None:
    """The prefill worker answers requests too, and then it is one engine."""
    prefill, decode = pair
    wait_for_peer(decode)
    for number in range(6):
        prompt = f"{number}: " + STORY * (1 + 2 * number)
        sampled: dict[str, Any] = {"temperature": 1.0, "seed": number} if number % 2 else {}
        assert (
            complete(decode.url, prompt, **sampled)["text"]
            == (complete(prefill.url, prompt, cache_salt="apart", **sampled)["text"])
        )
    for server in pair:
        server.wait_until_idle()


def test_killed_engines_come_back_under_their_servers(pair: tuple[Server, Server]) -> None:
    """The prefill worker at its old address, where the decode worker finds it again."""
    prompt = STORY * 5
    expected = complete(pair[1].url, prompt)["text"]
    for victim in pair:
        victim.kill_engine()
        wait_for_peer(pair[1])
        assert complete(pair[1].url, prompt, cache_salt=victim.url)["text"] == expected
    for server in pair:
        assert server.gauge("rtp_llm_engine_restarts_total") == 1
        server.wait_until_idle()


def test_killed_servers_leave_no_block_behind(pair: tuple[Server, Server]) -> None:
    """Either is killed at random moments; every answer of the other stays right."""
    prefill, decode = pair
    chance = random.Random(7)
    prompt = STORY * 12
    expected = complete(decode.url, prompt)["text"]
    for kill in range(KILLS):
        victim, other = (prefill, decode) if kill % 5 else (decode, prefill)
        with ThreadPoolExecutor(ASKING) as pool:
            asked = [pool.submit(ask, decode, prompt) for _ in range(ASKING)]
            time.sleep(chance.random() * 0.15)
            victim.kill()
            answers = [each.result() for each in asked]
        if victim is prefill:
            assert answers == [expected] * ASKING  # computed there or here
        other.wait_until_idle()
        victim.restart()
        victim.process.wait_for("is ready: ")
        wait_for_peer(decode)


def ask(server: Server, prompt: str) -> str | None:
    """The text; None when the server itself was killed."""
    try:
        return str(complete(server.url, prompt, cache_salt=str(random.random()))["text"])
    except Exception:
        return None
