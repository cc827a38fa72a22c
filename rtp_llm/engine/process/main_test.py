# SPDX-License-Identifier: Apache-2.0
"""Tests of the real engine process over a tiny model."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
import torch

from rtp_llm.config.settings import Settings
from rtp_llm.engine.client.engine_client import EngineClient
from rtp_llm.engine.deltas import decode_vector
from rtp_llm.engine.messages import (
    AddRequest,
    EngineDeadError,
    EngineLog,
    EngineStartError,
    RequestError,
)
from rtp_llm.request.params import PoolingParams
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.models.transformers_models import (
    expected_logits,
    expected_tokens,
    random_prompt,
    save_model,
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.set_num_threads(1)  # the engine process wants the other core
    folder = tmp_path_factory.mktemp("llama")
    return folder, save_model(folder, "llama", max_position_embeddings=4096)


async def collect(client: EngineClient, prompt: list[int], **params: Any) -> list[Any]:
    request = AddRequest(
        request_id=client.new_request_id(),
        prompt_token_ids=prompt,
        params=SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **params}),
    )
    return [delta async for delta in client.generate(request)]


async def ask_for_ever(client: EngineClient) -> None:
    """One long answer after the other: no machine is through with them."""
    while True:
        await collect(client, random_prompt(9), max_tokens=4000)


async def eventually(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.02)


def settings(folder: Any, **changes: Any) -> Settings:
    return Settings(model=str(folder), num_threads=1, kv_cache_mem_mb=16, task="all", **changes)


async def asks_for_vectors(client: EngineClient, reference: Any) -> None:
    prompts = [random_prompt(length, seed=length) for length in (1, 30, 700)]
    streams = [
        client.generate(
            AddRequest(
                request_id=client.new_request_id(),
                prompt_token_ids=prompt,
                params=PoolingParams(pooling_type=kind, normalize=False),
            )
        )
        for prompt, kind in zip(prompts, ("last", "mean", "cls"), strict=True)
    ]
    for prompt, stream, place in zip(prompts, streams, (-1, slice(None), 0), strict=True):
        (delta,) = [each async for each in stream]
        assert (delta.token_ids, delta.finish_reason, stream.finished) == ([], "stop", True)
        with torch.inference_mode():
            states = reference.model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
        expected = states[place].reshape(-1, states.shape[1]).mean(0)
        found = torch.tensor(decode_vector(delta.pooled))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_whole_life(llama):
    folder, reference = llama
    logs: list[EngineLog] = []

    async def life() -> None:
        client = EngineClient()
        client.on_log = logs.append
        client.spawn(settings(folder))
        assert not client.alive
        ready = await client.start(settings(folder))
        assert client.alive
        assert (ready.vocab_size, ready.device, ready.dtype) == (199, "cpu", "float32")
        await asks(client, reference)
        await asks_for_vectors(client, reference)
        await goes_away(client)
        process = client.processes[0]._link.process
        await client.close()
        assert process._child.returncode == 0

    asyncio.run(asyncio.wait_for(life(), 120))
    text = "\n".join(record.message for record in logs)
    assert "LlamaForCausalLM" in text
    assert "KV cache of" in text


async def asks(client: EngineClient, reference: Any) -> None:
    prompts = [random_prompt(length, seed=length) for length in (5, 40, 33, 700)]
    answers = await asyncio.gather(*(collect(client, p, max_tokens=12) for p in prompts))
    for prompt, deltas in zip(prompts, answers, strict=True):
        tokens = [token for delta in deltas for token in delta.token_ids]
        assert tokens == expected_tokens(reference, prompt, 12)
        assert deltas[-1].finish_reason == "length"
    again = await collect(client, prompts[3], max_tokens=1)
    assert again[0].cached_tokens == 688
    scored = await collect(client, prompts[1], max_tokens=2, logprobs=1, prompt_logprobs=0)
    entries = scored[0].prompt_logprobs
    assert entries[0] is None
    expected = expected_logits(reference, prompts[1]).log_softmax(-1)
    for position, entry in enumerate(entries[1:]):
        wanted = float(expected[position, prompts[1][position + 1]])
        assert entry.logprob == pytest.approx(wanted, abs=2e-3)
    assert scored[0].logprobs[0].top[0][0] == scored[0].token_ids[0]
    with pytest.raises(RequestError, match="outside the vocabulary"):
        await collect(client, [5, 1000])


async def goes_away(client: EngineClient) -> None:
    job = asyncio.ensure_future(ask_for_ever(client))
    await eventually(lambda: client.latest_stats.running == 1)
    assert client.latest_stats.free_blocks < client.latest_stats.total_blocks
    job.cancel()
    await eventually(lambda: client.latest_stats.running == 0)
    await eventually(lambda: client.latest_stats.free_blocks == client.latest_stats.total_blocks)


@pytest.mark.usefixtures("forked_processes")
def test_a_killed_engine_fails_its_requests(llama):
    async def run() -> None:
        client = EngineClient()
        await client.start(settings(llama[0]))
        jobs = [asyncio.ensure_future(ask_for_ever(client)) for _ in range(3)]
        await eventually(lambda: client.latest_stats.running == 3)
        os.kill(client.processes[0]._link.process.pid, signal.SIGKILL)
        for result in await asyncio.gather(*jobs, return_exceptions=True):
            assert isinstance(result, EngineDeadError)
        assert not client.alive
        await client.close()

    asyncio.run(asyncio.wait_for(run(), 120))


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_seq_len": 5000}, "max_seq_len=5000 is more than the 4096 tokens"),
        ({"model": "/nowhere"}, "/nowhere"),
        ({"kv_cache_mem_mb": 1, "max_seq_len": 4096}, "kv_cache_mem_mb=1, but one sequence"),
        ({"device_type": "xpu"}, "device_type=xpu"),
    ],
)
def test_what_cannot_start_says_which_setting_to_change(llama, changes, words):
    async def run() -> None:
        client = EngineClient()
        wanted = {"model": str(llama[0]), "num_threads": 1, **changes}
        with pytest.raises(EngineStartError, match=words):
            await client.start(Settings(**wanted))

    asyncio.run(asyncio.wait_for(run(), 120))
