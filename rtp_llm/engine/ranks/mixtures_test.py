# SPDX-License-Identifier: Apache-2.0
"""Mixtures on two engines of two ranks each: the experts are divided among all four."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.engine.client.engine_client import EngineClient
from rtp_llm.engine.messages import AddRequest, EngineDeadError, EngineReady
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.server_processes import children

pytestmark = pytest.mark.usefixtures("forked_processes")

SMALL: dict[str, Any] = {"dtype": "float32", "kv_cache_mem_mb": 8, "num_threads": 1}
FOUR: dict[str, Any] = {"data_parallel_size": 2, "tensor_parallel_size": 2}
SAMPLING: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
PROMPTS = [random_prompt(length, length) for length in (3, 1, 17, 40, 9)]


async def answer(client: EngineClient, prompt: list[int]) -> list[int]:
    wanted = AddRequest(
        request_id=client.new_request_id(),
        prompt_token_ids=prompt,
        params=SamplingParams(**SAMPLING),
    )
    return [token async for delta in client.generate(wanted) for token in delta.token_ids]


async def started(folder: Path, **settings: Any) -> tuple[EngineClient, EngineReady]:
    client = EngineClient(size=2, devices=2)
    return client, await client.start(Settings(model=str(folder), **SMALL, **FOUR, **settings))


# Prompts of more than 8 tokens take messages of exact size, decoding takes fixed ones.
@pytest.mark.parametrize(
    ("kind", "settings"),
    [("qwen3_moe", {"expert_capacity": 8}), ("deepseek_v3", {"enable_overlap": True})],
)
def test_the_tokens_are_those_of_one_rank(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    save_model(tmp_path, kind, seed=3)
    alone = TinyEngine(tmp_path, **SMALL)
    expected = [alone.tokens(prompt, **SAMPLING) for prompt in PROMPTS]

    async def life() -> tuple[list[list[int]], list[int], EngineReady]:
        client, ready = await started(tmp_path, **settings)
        try:
            async with asyncio.timeout(120):
                together = await asyncio.gather(*(answer(client, each) for each in PROMPTS))
                return together, await answer(client, PROMPTS[3]), ready
        finally:
            await client.close()

    together, single, ready = asyncio.run(life())
    assert together == expected
    assert single == expected[3]  # the other engine only takes part
    assert ready.lockstep


def test_a_rank_that_is_killed_ends_all(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3_moe", seed=3)

    async def life() -> tuple[str, list[int]]:
        client, _ = await started(tmp_path)
        try:
            engines = [each._link.process.pid for each in client.processes]  # type: ignore[union-attr]
            ranks = [rank for engine in engines for rank in children(engine)]
            asked = asyncio.create_task(answer(client, PROMPTS[2]))
            os.kill(ranks[-1], signal.SIGKILL)
            with pytest.raises(EngineDeadError) as died:
                async with asyncio.timeout(60):
                    await asked
                    while True:
                        await answer(client, PROMPTS[2])
            return str(died.value), [*engines, *ranks]
        finally:
            await client.close(0.0)

    reason, processes = asyncio.run(life())
    assert "rank 1 was ended by signal SIGKILL" in reason
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)
