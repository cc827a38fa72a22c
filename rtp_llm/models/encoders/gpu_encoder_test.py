# SPDX-License-Identifier: Apache-2.0
"""Encoders on a GPU through the whole engine, against transformers on the CPU; skipped without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity

from rtp_llm import ops
from rtp_llm.testing.models.encoder_models import ENCODERS, expected_states, save_encoder
from rtp_llm.testing.models.transformers_models import random_prompt
from rtp_llm.testing.usable_gpu import usable_gpu

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")

DEVICE = usable_gpu()
USABLE = DEVICE is not None and ops.has_kernel("varlen_attention", DEVICE.torch_device.type)
pytestmark = pytest.mark.skipif(not USABLE, reason="no GPU with kernels for encoders")
LENGTHS = (1, 17, 128, 256, 300)


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.99999), ("bfloat16", 0.995)])
def test_vectors_equal_transformers(kind: str, dtype: str, least: float, tmp_path: Path) -> None:
    from rtp_llm.request.params import PoolingParams
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    assert DEVICE is not None
    reference = save_encoder(tmp_path, kind)
    engine = TinyEngine(
        tmp_path, device_type=DEVICE.name, dtype=dtype, kv_cache_mem_mb=None, task="auto"
    )
    params = PoolingParams(pooling_type="mean", normalize=False)
    prompts = [random_prompt(length, seed=length) for length in LENGTHS]
    requests = [engine.add_request(prompt, params) for prompt in prompts]
    engine.run()
    for request, prompt in zip(requests, prompts, strict=True):
        found = torch.tensor(engine.outcomes[request, 0].pooled)
        wanted = expected_states(reference, prompt).mean(0)
        assert cosine_similarity(found, wanted, dim=0) > least
    engine.assert_all_free()


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.99999), ("bfloat16", 0.9995)])
def test_graphs_give_what_eager_steps_do(
    kind: str, dtype: str, least: float, tmp_path: Path
) -> None:
    """What padding holds, and what an earlier step has left there, reaches no vector."""
    from rtp_llm.testing.engine.tiny_engine import TinyEngine
    from rtp_llm.testing.engine.whole_prompts import (
        PROMPT_BATCHES,
        PROMPT_TOKENS,
        capture_all,
        mean_states,
    )

    assert DEVICE is not None
    if not DEVICE.supports("graph_capture"):
        pytest.skip("this device captures no graphs")
    save_encoder(tmp_path, kind)
    own = {"device_type": DEVICE.name, "dtype": dtype, "kv_cache_mem_mb": None}
    own |= {"max_batch_tokens_size": PROMPT_TOKENS}
    eager = TinyEngine(tmp_path, enable_graphs=False, **own)
    captured = TinyEngine(tmp_path, enable_graphs=True, **own)
    capture_all(captured)
    graphs = captured.built.worker.runner._graphs
    assert graphs is not None and {size for _, size in PROMPT_BATCHES} <= graphs._captured.keys()
    for lengths, _ in PROMPT_BATCHES:
        expected = mean_states(eager, lengths, pairs=kind == "bert")
        found = mean_states(captured, lengths, pairs=kind == "bert")
        assert cosine_similarity(found, expected, dim=1).min() > least
    captured.assert_all_free()
