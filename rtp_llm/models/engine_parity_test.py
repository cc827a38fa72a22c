# SPDX-License-Identifier: Apache-2.0
"""Parity with transformers through the whole engine: scheduling changes no token.

Each architecture answers the same prompts with prefix cache on and off, in several chunk sizes,
with too few blocks for all of them, and with hashes so short that unlike prompts collide.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from rtp_llm.engine.start import build
from rtp_llm.native import load_runtime
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import (
    expected_tokens,
    random_prompt,
    save_model,
)

torch.set_num_threads(2)

NEW_TOKENS = 64
WINDOWED = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
MODELS = {
    "deepseek_v3": {"num_hidden_layers": 2},
    "exaone4": {},
    "gemma2": {"num_hidden_layers": 2},
    "gemma3": {},
    "gemma4": {},
    "gemma4_experts": {"seed": 1},
    "glm_moe_dsa": {"index_topk_pattern": "FS", "num_hidden_layers": 2},
    "gpt_oss": {"num_hidden_layers": 2},
    "llama": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 80},
    "mistral": {"num_attention_heads": 7, "num_key_value_heads": 1, "sliding_window": 24},
    "olmo3": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    "qwen2": {"num_attention_heads": 3, "num_key_value_heads": 3, **WINDOWED},
    "qwen3": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128},
    "qwen3_moe": {"num_hidden_layers": 2},
}
# The second and third begin as the first does, for two blocks and for all of its tokens.
FIRST = random_prompt(53)
PROMPTS = [FIRST, FIRST[:39] + random_prompt(20, seed=1), FIRST + random_prompt(9, seed=2)]
PROMPTS += [random_prompt(50, seed=3), random_prompt(1, seed=4)]


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    """(folder, what transformers answers to each of PROMPTS)."""
    folder = tmp_path_factory.mktemp(request.param)
    reference = save_model(folder, request.param, **MODELS[request.param])
    return folder, [expected_tokens(reference, prompt, NEW_TOKENS) for prompt in PROMPTS]


def answers(engine, prompts=PROMPTS):
    """All prompts at once; every block must be back afterwards."""
    requested = [engine.add(prompt, max_tokens=NEW_TOKENS, ignore_eos=True) for prompt in prompts]
    engine.run()
    engine.assert_all_free()
    return [engine.outcomes[request_id, 0].tokens for request_id in requested]


@pytest.mark.parametrize("chunk", [8, 33, 512])
@pytest.mark.parametrize("reuse_cache", [True, False])
def test_chunks_and_prefix_cache_change_no_token(model, chunk, reuse_cache):
    folder, expected = model
    engine = TinyEngine(
        folder, reuse_cache=reuse_cache, max_batch_tokens_size=chunk, max_running_requests=8
    )
    assert answers(engine) == expected
    assert answers(engine) == expected  # now, with the cache, from what the first round left
    assert (engine.engine.stats().prefix_hit_tokens > 0) == reuse_cache


@pytest.mark.parametrize("reuse_cache", [True, False])
def test_preemption_changes_no_token(model, reuse_cache, monkeypatch):
    folder, expected = model
    blocks = 12  # of 16 tokens, one of them for padding; the longest sequence alone takes 8
    shrink(monkeypatch, num_blocks=blocks)
    engine = TinyEngine(folder, reuse_cache=reuse_cache, max_seq_len=160)
    assert answers(engine) == expected
    stats = engine.engine.stats()
    assert stats.preemptions > 0
    assert stats.total_blocks <= 2 * blocks


@pytest.mark.parametrize("hash_bits", [1, 3])
def test_colliding_hashes_change_no_token(model, hash_bits, monkeypatch):
    folder, expected = model
    runtime = load_runtime()
    shorten(monkeypatch, runtime, hash_bits)
    engine = TinyEngine(folder)
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        assert answers(engine, [prompt]) == [tokens]
    assert answers(engine) == expected


class Runtime:
    """The runtime with some arguments of its constructors fixed."""

    def __init__(self, runtime, **fixed):
        self._runtime, self._fixed = runtime, fixed

    def __getattr__(self, name):
        found = getattr(self._runtime, name)
        return partial(found, **self._fixed[name]) if name in self._fixed else found


def shorten(monkeypatch, runtime, hash_bits):
    shortened = Runtime(runtime, SchedulerConfig={"hash_bits": hash_bits})
    monkeypatch.setattr(build, "load_runtime", lambda: shortened)


def shrink(monkeypatch, num_blocks):
    """Give the scheduler fewer blocks than the cache has."""
    runtime = load_runtime()

    def group(**arguments):
        return runtime.CacheGroup(**{**arguments, "num_blocks": num_blocks})

    shrunk = Runtime(runtime)
    shrunk.CacheGroup = group
    monkeypatch.setattr(build, "load_runtime", lambda: shrunk)
