# SPDX-License-Identifier: Apache-2.0
"""NaN on a GPU ends its own sequence alone, and blocks may be of one token; skipped without one."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpu

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
DEVICE = usable_gpu()
GPU = DEVICE and DEVICE.name
pytestmark = pytest.mark.skipif(GPU is None, reason="no GPU, or not built for the one there is")

POISON = 198  # the token whose embedding is NaN
NEVER = {POISON: -100.0}


def tiny_engine(folder, **settings):
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    return TinyEngine(folder, allow_reference_ops=True, **settings)


def add_all(engine):
    wanted = {"max_tokens": 16, "ignore_eos": True, "logit_bias": NEVER}
    for number in range(8):
        engine.add(random_prompt(60, number, vocabulary=POISON), **wanted)
    engine.run()
    engine.assert_all_free()


@pytest.mark.parametrize("architecture", ["qwen3", "mistral", "qwen3_moe", "deepseek_v3"])
def test_sequences_of_nan_end_alone(architecture, tmp_path):
    window = {"sliding_window": 24} if architecture == "mistral" else {}
    save_model(tmp_path, architecture, seed=7, **window)
    small = {"device_type": GPU, "kv_cache_mem_mb": 1, "max_seq_len": 80}
    clean = tiny_engine(tmp_path, **small)
    add_all(clean)
    engine = tiny_engine(tmp_path, **small)
    engine.built.worker.runner.model.model.embed_tokens.weight[POISON] = torch.nan
    bad = []
    for number in range(40):  # every block has held NaN afterwards
        prompt = random_prompt(60, number, vocabulary=POISON)
        prompt[number] = POISON
        bad.append(engine.add(prompt, n=2, temperature=1.0))
    engine.run()
    for request_id in bad:
        for index in range(2):
            outcome = engine.outcomes[request_id, index]
            assert (outcome.error, outcome.tokens) == ("model_produced_nan", [])
    assert engine.engine.stats().degenerate_rows == 80
    add_all(engine)
    for number in range(1, 9):
        expected = clean.outcomes[number, 0].tokens
        assert engine.outcomes[len(bad) + number, 0].tokens == expected


@pytest.mark.parametrize("architecture", ["qwen3", "mistral", "deepseek_v3"])
def test_blocks_of_one_token(architecture, tmp_path):
    window = {"sliding_window": 24} if architecture == "mistral" else {}
    save_model(tmp_path, architecture, seed=7, **window)
    tokens = []
    for block in (1, 16):
        engine = tiny_engine(tmp_path, device_type=GPU, seq_size_per_block=block)
        for _ in range(2):  # the second time with a prefix from the cache
            add_all(engine)
        tokens.append({key: outcome.tokens for key, outcome in engine.outcomes.items()})
    assert tokens[0] == tokens[1]
