# SPDX-License-Identifier: Apache-2.0
"""Tests of an engine of two ranks: tokens as of one, live moves, death, refusals."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm import LLM, SamplingParams
from rtp_llm.config.settings import Settings
from rtp_llm.engine.client.engine_client import EngineClient
from rtp_llm.engine.client.launch import EngineProcess
from rtp_llm.engine.messages import AddRequest, EngineDeadError, EngineLog, EngineStartError
from rtp_llm.engine.start.rank_setup import check_ranks
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.transformers_models import clear_prompt, save_model

pytestmark = pytest.mark.usefixtures("forked_processes")

SMALL = {"kv_cache_mem_mb": 8, "num_threads": 1}
LONG = 20_000  # tokens that no machine has given before a test does something to their stream
TOKENS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.set_num_threads(1)  # the ranks want the other core
    path = tmp_path_factory.mktemp("model")
    tokenizer = byte_level()
    # So long an answer has to fit into a small cache.
    sizes = {"max_position_embeddings": LONG + 192, "num_key_value_heads": 1, "head_dim": 16}
    size = tokenizer.get_vocab_size()
    made = save_model(path, "qwen3_moe", eos_token_id=1, vocab_size=size, **sizes)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return path, made


@pytest.fixture(scope="module")
def folder(model: Any) -> Path:
    path: Path = model[0]
    return path


@pytest.fixture(scope="module")
def expected(model: Any) -> Any:
    path, made = model
    # Ranks add up in another order: what rounding decides would differ between processors.
    clear = [clear_prompt(made, length, TOKENS.max_tokens) for length in (3, 1, 17, 40, 9)]
    prompts, tokens = (list(each) for each in zip(*clear, strict=True))
    with LLM(path, **SMALL) as llm:
        llm_bytes.append(llm.ready.weight_bytes)
        assert generate(llm, prompts) == tokens
    return prompts, tokens


llm_bytes: list[int] = []  # weights of one rank alone


def generate(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, TOKENS)]


def test_two_ranks_give_the_tokens_of_one(folder, expected, caplog):
    prompts, tokens = expected
    caplog.set_level("INFO", "rtp_llm.engine")
    # Prompts of more than 8 tokens take messages of exact size, decoding takes fixed ones, and
    # experts move all the time.
    settings = {"expert_capacity": 8, "redundant_expert": 2, "eplb_mode": "all"}
    settings |= {"eplb_update_time": 3, "balance_method": "round"}
    with LLM(folder, data_parallel_size=2, **SMALL, **settings) as llm:
        assert generate(llm, prompts) == tokens
        # One alone: the other rank takes part without a token. Then both again, after a rest.
        assert generate(llm, prompts[:1]) == tokens[:1]
        assert generate(llm, prompts) == tokens
        with pytest.raises(ValueError, match="--data-parallel-size to 1"):
            llm.generate("x", TOKENS, logits_processors=[object()])
        with pytest.raises(ValueError, match="more than the longest sequence"):
            llm.generate([[1] * 2 * LONG], TOKENS)
        for _ in range(100):  # experts move in the background, when they get a core
            if "experts moved" in caplog.text:
                break
            assert generate(llm, prompts) == tokens
    assert "the busiest rank has" in caplog.text
    assert "experts moved" in caplog.text


def test_a_rank_whose_next_sequence_waits_for_the_last_step_is_waited_for(folder, expected):
    """Both requests of the first rank run one after the other, when the second has none."""
    prompts, tokens = expected
    params = [TOKENS, SamplingParams(temperature=0, max_tokens=1), TOKENS]
    settings = {"max_running_requests": 1, "enable_overlap": True, "step_timeout": 15}
    with LLM(folder, data_parallel_size=2, **SMALL, **settings) as llm:
        outputs = llm.generate(prompts[:3], params)
        assert [outputs[at].outputs[0].token_ids for at in (0, 2)] == [tokens[0], tokens[2]]
        # A rank goes on until it hears of an abort: what it sends meanwhile is for nobody.
        text = outputs[0].outputs[0].text
        stop = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, stop=(text[:2],))
        assert llm.generate(prompts[:1], stop)[0].outputs[0].finish_reason == "stop"
        assert generate(llm, prompts[:1]) == tokens[:1]


def test_ranks_that_cannot_start_leave_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(EngineStartError, match="set redundant_expert to 1"):
        LLM(folder, data_parallel_size=3, **SMALL)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("api", ["LLM", "server"])
def test_ranks_that_cannot_be_spawned_end_those_before(folder, tmp_path, monkeypatch, api):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spawned = []
    spawn = EngineProcess.spawn

    def first_only(*arguments):
        if spawned:
            raise OSError("no more processes")
        spawned.append(spawn(*arguments))
        return spawned[0]

    monkeypatch.setattr(EngineProcess, "spawn", first_only)
    with pytest.raises(OSError, match="no more processes"):
        if api == "LLM":
            LLM(folder, data_parallel_size=2, **SMALL)
        else:
            EngineClient(size=2).spawn(Settings(model=str(folder), data_parallel_size=2, **SMALL))
    assert not spawned[0].running
    assert not list(tmp_path.iterdir())


def request(client: EngineClient, prompt: list[int], max_tokens: int) -> AddRequest:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return AddRequest(request_id=client.new_request_id(), prompt_token_ids=prompt, params=params)


async def collect(client: EngineClient, prompt: list[int], max_tokens: int = 24) -> list[int]:
    deltas = [delta async for delta in client.generate(request(client, prompt, max_tokens))]
    return [token for delta in deltas for token in delta.token_ids]


def test_a_killed_rank_ends_the_engine_with_the_reason(folder, expected):
    prompts, tokens = expected
    logs: list[EngineLog] = []

    async def life() -> None:
        client = EngineClient(size=2)
        client.on_log = logs.append
        ready = await client.start(Settings(model=str(folder), data_parallel_size=2, **SMALL))
        try:
            assert ready.max_running == 512
            each = [client.ready for client in client.processes]
            assert ready.weight_bytes == sum(rank.weight_bytes for rank in each)
            # Half of the experts on each: 3 layers of 8 experts, 3 matrices of 48 x 64 float32.
            experts = 3 * 8 * 3 * 48 * 64 * 4
            assert 2 * llm_bytes[0] - ready.weight_bytes == experts
            found = await asyncio.gather(*(collect(client, prompt) for prompt in prompts))
            assert found == tokens
            streams = [client.generate(request(client, prompts[0], LONG)) for _ in range(4)]
            # As many on each rank.
            assert [each.num_sequences for each in client.processes] == [2, 2]
            first = [await anext(stream) for stream in streams]
            assert all(delta.token_ids for delta in first)
            assert client.alive
            os.kill(client.processes[1]._link.process.pid, signal.SIGKILL)
            for stream in streams:
                with pytest.raises(EngineDeadError):
                    async with asyncio.timeout(60):
                        while True:
                            await anext(stream)
            assert client.failure == "rank 1: the engine process was ended by signal SIGKILL"
            assert not client.alive
            with pytest.raises(EngineDeadError, match="rank 1"):
                client.generate(request(client, prompts[0], 3))
        finally:
            await client.close()
        assert not any(each._link for each in client.processes)

    asyncio.run(life())
    assert any(line.message.startswith("rank 1: ") for line in logs)


@pytest.mark.parametrize(
    ("changes", "ranks", "words"),
    [
        ({"data_parallel_size": 3}, 3, "set redundant_expert to 1 or that and a multiple of 3"),
        ({"data_parallel_size": 2, "redundant_expert": 10}, 2, "take at most 8"),
        ({"data_parallel_size": 2, "role": "decode"}, 2, "role=decode: .* has one rank"),
        ({"data_parallel_size": 2}, 1, "data_parallel_size=2 needs as many processes"),
        ({"eplb_mode": "eplb"}, 1, "eplb_mode: one rank has nothing to balance"),
        ({"redundant_expert": 2}, 1, "redundant_expert: one rank has nothing to balance"),
        ({"expert_capacity": 0, "fake_balance_expert": True}, 1, "expert_capacity: one rank has"),
        ({"data_parallel_size": 2, "eplb_update_time": 7}, 2, "eplb_update_time: eplb_mode=none"),
        (
            {"data_parallel_size": 2, "eplb_mode": "stats", "balance_method": "round"},
            2,
            "balance_method: eplb_mode=stats does not read it",
        ),
        (
            {"data_parallel_size": 2, "tensor_parallel_size": 2, "eplb_mode": "eplb"},
            2,
            r"settings of their own is not supported: .* \(eplb_mode, tensor_parallel_size=2\)",
        ),
        (
            {"tensor_parallel_size": 2, "fake_balance_expert": True},
            1,
            r"settings of their own is not supported: .* \(fake_balance_expert, ",
        ),
        (
            {"data_parallel_size": 3, "tensor_parallel_size": 2},
            3,
            "data_parallel_size=3 x tensor_parallel_size=2 = 6 ranks: 8 = 6 x 1 [+] 2",
        ),
    ],
)
def test_what_ranks_cannot_do_is_refused_at_the_start(folder, changes, ranks, words):
    config = read_model_config(folder)
    with pytest.raises(EngineStartError, match=words):
        check_ranks(Settings(model=str(folder), **changes), config, ranks)
    dense = dataclasses.replace(config, moe=None)
    with pytest.raises(EngineStartError, match="has no experts"):
        check_ranks(Settings(model=str(folder), eplb_mode="stats"), dense, 1)
    with pytest.raises(EngineStartError, match=r"expert_capacity: .* has no experts"):
        check_ranks(Settings(model=str(folder), expert_capacity=8), dense, 1)


def test_a_rank_that_cannot_start_ends_the_others_with_its_reason(folder, tmp_path):
    async def life() -> None:
        client = EngineClient(size=2)
        settings = Settings(model=str(folder), data_parallel_size=2, **SMALL)
        # Only rank 1 finds its weights broken.
        client.processes[1].spawn(dataclasses.replace(settings, model=str(tmp_path)))
        with pytest.raises(EngineStartError, match=r"^rank 1: .*config.json"):
            await client.start(settings)

    asyncio.run(life())


def test_even_selections_of_one_rank_change_the_answer(folder, expected):
    prompts, tokens = expected
    with LLM(folder, fake_balance_expert=True, **SMALL) as llm:
        assert generate(llm, prompts) != tokens
