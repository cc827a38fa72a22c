# SPDX-License-Identifier: Apache-2.0
"""The whole engine against transformers: the same greedy tokens whatever the scheduler does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rtp_llm.engine.start import build
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import (
    expected_tokens,
    random_prompt,
    save_model,
)

STEPS = 64
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 1, "rope_parameters": LLAMA3_ROPE},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 40},
    "qwen2": {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 448},
    "qwen3": {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 80},
}


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    reference = save_model(folder, kind, seed=7, **MODELS[kind])
    shared = random_prompt(50, seed=1)
    prompts = [
        random_prompt(3, seed=2),
        [*shared, 11, 12],
        random_prompt(65, seed=3),
        [*shared, 21, 22, 23],
        shared[:32],
    ]
    return folder, prompts, [expected_tokens(reference, prompt, STEPS) for prompt in prompts]


def generate(engine: TinyEngine, prompts: list[list[int]], tenants: int = 1) -> list[Any]:
    """Two prompts alone, then the others together; tenants share no cached prefix."""
    ids = []
    for number, tenant in enumerate([t for t in range(tenants) for _ in prompts]):
        prompt = prompts[number % len(prompts)]
        ids.append(engine.add(prompt, max_tokens=STEPS, ignore_eos=True, key=str(tenant)))
        if number == 1:
            engine.run()
    engine.run()
    engine.assert_all_free()
    return [engine.outcomes[request_id, 0].tokens for request_id in ids]


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("chunk", [5, 16, 33, 512])
def test_chunks_and_the_prefix_cache_change_nothing(model, reuse, chunk):
    folder, prompts, expected = model
    engine = TinyEngine(
        folder, reuse_cache=reuse, max_batch_tokens_size=chunk, max_running_requests=5
    )
    assert generate(engine, prompts) == expected
    assert (engine.engine.stats().prefix_hit_tokens > 0) == reuse


@pytest.mark.parametrize("reuse", [True, False])
def test_preemption_changes_nothing(model, reuse):
    folder, prompts, expected = model
    engine = TinyEngine(
        folder,
        reuse_cache=reuse,
        seq_size_per_block=4,
        max_seq_len=65 + STEPS,
        kv_cache_mem_mb=1,
        max_batch_tokens_size=64,
        max_running_requests=40,
    )
    assert generate(engine, prompts, tenants=8) == expected * 8
    assert engine.engine.stats().preemptions > 0


def test_blocks_of_one_token_change_nothing(model):
    folder, prompts, expected = model
    engine = TinyEngine(folder, seq_size_per_block=1, max_batch_tokens_size=33)
    assert generate(engine, prompts) == expected
    assert engine.engine.stats().prefix_hit_tokens > 0


def test_colliding_hashes_change_nothing(model, monkeypatch):
    """With a hash of no bits every block of every prompt has the same one."""
    folder, prompts, expected = model
    runtime = build.load_runtime()

    def config(**values: Any) -> Any:
        return runtime.SchedulerConfig(**values, hash_bits=0)

    names = {name: getattr(runtime, name) for name in ("CacheGroup", "Scheduler")}
    monkeypatch.setattr(
        build, "load_runtime", lambda: SimpleNamespace(**names, SchedulerConfig=config)
    )
    engine = TinyEngine(folder)
    assert generate(engine, prompts) == expected
    assert generate(engine, prompts) == expected
