# SPDX-License-Identifier: Apache-2.0
"""DeepSeek and FP8 on two ranks whose experts move: one rank's tokens, weights divided."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.config.settings import Settings
from rtp_llm.engine.client.engine_client import EngineClient
from rtp_llm.engine.messages import AddRequest, EngineReady
from rtp_llm.layers import MoeBlock
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu, round_products_once
from rtp_llm.testing.models.fp8_checkpoints import store_as_fp8
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

pytestmark = pytest.mark.usefixtures("forked_processes")

PROMPTS = [random_prompt(length, length) for length in (3, 1, 17, 40, 9)]
SAMPLING = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
# Prompts of more than 8 tokens take messages of exact size, decoding takes fixed ones.
MOVING = {
    "data_parallel_size": 2,
    "expert_capacity": 8,
    "redundant_expert": 2,
    "eplb_mode": "all",
    "eplb_update_time": 3,
    "balance_method": "round",
}
# A cached prefix leaves fewer rows to a step, which MLA then computes in its
# other form: that changes bfloat16's last bits on one rank, too.
FP8 = {"dtype": "bfloat16", "reuse_cache": False}
MOVED = "experts moved between ranks"
PRODUCTS = "rtp_llm.testing.engine.fp8_process"


@dataclass(frozen=True)
class Case:
    """A model, how it is stored and read, and the process of a rank."""

    kind: str
    config: dict[str, int] = field(default_factory=dict)
    stored: torch.dtype | None = None  # in FP8 blocks, the rest in this type
    module: str = "rtp_llm.engine.process.main"
    settings: dict[str, Any] = field(default_factory=dict)


# A rank's part of a sum is rounded to the activations' type before parts are added up: in bfloat16
# that shows, unless all experts of a token, here its only one, are on one rank.
ODD_MIXTURE = {"hidden_size": 160, "moe_intermediate_size": 144, "num_experts_per_tok": 1}
ODD_MLA = {"hidden_size": 160, "q_lora_rank": 72, "kv_lora_rank": 40, "num_experts_per_tok": 1}
CASES = {
    "deepseek_v3": Case("deepseek_v3"),
    "gated delta nets": Case("qwen3_next"),
    "fp8 as floats": Case("qwen3_moe", stored=torch.float32),
    "fp8": Case("qwen3_moe", ODD_MIXTURE, torch.bfloat16, PRODUCTS, FP8),
    "deepseek_v3 in fp8": Case("deepseek_v3", ODD_MLA, torch.bfloat16, PRODUCTS, FP8),
    "deepseek_v3 to fp8": Case(
        "deepseek_v3", ODD_MLA, None, PRODUCTS, {**FP8, "quantization": "fp8"}
    ),
}


async def answers(client: EngineClient) -> list[list[int]]:
    async def one(prompt: list[int]) -> list[int]:
        wanted = AddRequest(
            request_id=client.new_request_id(),
            prompt_token_ids=prompt,
            params=SamplingParams(**SAMPLING),
        )
        return [token async for delta in client.generate(wanted) for token in delta.token_ids]

    return list(await asyncio.gather(*map(one, PROMPTS)))


def two_ranks(
    folder: Path, case: Case, settings: dict[str, Any]
) -> tuple[list[list[list[int]]], EngineReady, str]:
    """What two ranks answer, twice and until experts have moved, what they are and log."""
    lines: list[str] = []

    async def life() -> tuple[list[list[list[int]]], EngineReady]:
        client = EngineClient(case.module, 2)
        client.on_log = lambda line: lines.append(line.message)
        ready = await client.start(Settings(model=str(folder), **settings, **MOVING))
        try:
            async with asyncio.timeout(120):
                found = [await answers(client) for _ in range(2)]
                # Experts move in the background, when they get a core.
                while not any(MOVED in line for line in lines):
                    found.append(await answers(client))
                return found, ready
        finally:
            await client.close()

    found, ready = asyncio.run(life())
    return found, ready, "\n".join(lines)


def expert_bytes(engine: TinyEngine) -> int:
    """Weights and scales of all routed experts."""
    blocks = engine.built.worker.runner.model.modules()
    experts = [block.experts for block in blocks if isinstance(block, MoeBlock)]
    return sum(parameter.nbytes for each in experts for parameter in each.parameters())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_two_ranks_whose_experts_move_give_the_tokens_of_one(tmp_path, case, monkeypatch):
    torch.set_num_threads(1)  # the ranks want the other core
    (tmp_path / "model").mkdir()
    save_model(tmp_path / "model", case.kind, seed=3, **case.config)
    if case.stored is not None:
        store_as_fp8(tmp_path / "model", dtype=case.stored)
    products = case.module == PRODUCTS
    if products:
        multiply_fp8_on_cpu(monkeypatch.setattr)
        round_products_once(monkeypatch.setattr)
    settings = {"dtype": "float32", "kv_cache_mem_mb": 8, "num_threads": 1, **case.settings}
    alone = TinyEngine(tmp_path / "model", **settings)
    request_ids = [alone.add(prompt, **SAMPLING) for prompt in PROMPTS]
    alone.run()
    tokens = [alone.outcomes[request, 0].tokens for request in request_ids]
    found, ready, log = two_ranks(tmp_path / "model", case, settings)
    assert found == [tokens] * len(found)
    assert MOVED in log
    assert ready.quantization == alone.ready.quantization == ("fp8" if products else "none")
    # All experts and two copies of each layer's together, everything else twice.
    experts = expert_bytes(alone)
    divided = ready.weight_bytes - 2 * (alone.ready.weight_bytes - experts)
    assert divided == experts * (8 + MOVING["redundant_expert"]) / 8
