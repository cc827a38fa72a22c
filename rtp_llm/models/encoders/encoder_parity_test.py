# SPDX-License-Identifier: Apache-2.0
"""Vectors of random encoders are those of transformers, alone and among other prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.request.params import PoolingParams, PoolingType
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.encoder_models import ENCODERS, expected_states, save_encoder
from rtp_llm.testing.models.transformers_models import random_prompt

LENGTHS = (1, 256, 300)


def pooled(engine: TinyEngine, prompts: list[list[int]], kind: PoolingType) -> list[torch.Tensor]:
    """The vectors of prompts that are added at once."""
    params = PoolingParams(pooling_type=kind, normalize=False)
    requests = [engine.add_request(prompt, params) for prompt in prompts]
    engine.run()
    return [torch.tensor(engine.outcomes[request, 0].pooled) for request in requests]


def expected(reference: Any, prompt: list[int], kind: PoolingType) -> torch.Tensor:
    states = expected_states(reference, prompt)
    return {"cls": states[0], "mean": states.mean(0), "last": states[-1]}[kind]


@pytest.mark.parametrize("kind", ENCODERS)
def test_vectors_equal_transformers(kind: str, tmp_path: Path) -> None:
    reference = save_encoder(tmp_path, kind)
    engine = TinyEngine(tmp_path)
    others = [random_prompt(3 + 7 * n % 60, seed=n) for n in range(30)]
    for length in LENGTHS:
        prompt = random_prompt(length, seed=length)
        (alone,) = pooled(engine, [prompt], "mean")
        torch.testing.assert_close(alone, expected(reference, prompt, "mean"), rtol=1e-4, atol=1e-4)
        among = pooled(engine, [*others[:13], prompt, *others[13:]], "mean")
        assert torch.equal(among[13], alone)
    for other in others[:3]:
        for pooling in ("cls", "last"):
            (vector,) = pooled(engine, [other], pooling)
            wanted = expected(reference, other, pooling)
            torch.testing.assert_close(vector, wanted, rtol=1e-4, atol=1e-4)
    engine.assert_all_free()
    assert engine.ready.kv_cache_bytes == 0


@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"quantization": "int8"}])
def test_fewer_bits_give_nearly_the_same_vectors(settings: dict[str, str], tmp_path: Path) -> None:
    reference = save_encoder(tmp_path, "modernbert")
    prompt = random_prompt(40)
    (found,) = pooled(TinyEngine(tmp_path, **settings), [prompt], "mean")
    wanted = expected(reference, prompt, "mean")
    assert torch.cosine_similarity(found, wanted, dim=0) > 0.999


def test_steps_that_overlap(tmp_path: Path) -> None:
    """Prompts of several steps, in the order of the requests."""
    reference = save_encoder(tmp_path, "bert")
    engine = TinyEngine(tmp_path, enable_overlap=True, max_batch_tokens_size=330)
    prompts = [random_prompt(1 + 41 * n % 320, seed=n) for n in range(24)]
    found = pooled(engine, prompts, "cls")
    for prompt, vector in zip(prompts, found, strict=True):
        wanted = expected(reference, prompt, "cls")
        torch.testing.assert_close(vector, wanted, rtol=1e-4, atol=1e-4)
    assert engine.engine.stats().steps > 10
    engine.assert_all_free()
