# SPDX-License-Identifier: Apache-2.0
"""DeepSeek's attention on a GPU through the whole engine, eager and captured; skipped without."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpu

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")

USABLE = usable_gpu("cuda") and ops.has_kernel("mla_rotate_and_store", "cuda")
pytestmark = pytest.mark.skipif(not USABLE, reason="no GPU with kernels for MLA")
# The published sizes of latents and keys, so that Hopper's own kernel takes the decode steps.
SETTINGS = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
}
LENGTHS = (3, 40, 150)


def scores(folder, **settings):
    """Log-probabilities of the prompts' tokens and of those that follow."""
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    engine = TinyEngine(folder, **settings)
    while engine.engine.has_idle_work:
        engine.engine.work_idle()
    ids = [
        engine.add(random_prompt(length, seed=length), prompt_logprobs=1, logprobs=1, max_tokens=40)
        for length in LENGTHS
    ]
    engine.run()
    engine.assert_all_free()
    outcomes = [engine.outcomes[request_id, 0] for request_id in ids]
    prompts = [outcome.prompt_logprobs for outcome in outcomes]
    of_prompts = [scored[place].logprob for scored in prompts for place in sorted(scored)]
    return torch.tensor(of_prompts), [outcome.tokens for outcome in outcomes]


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
@pytest.mark.parametrize("chunk", [None, 64])
def test_prompts_score_as_on_the_cpu(tmp_path, kind, chunk):
    """In chunks, a prompt's context is expanded, or its tokens are absorbed."""
    save_model(tmp_path, kind, seed=7, **SETTINGS)
    exact, _ = scores(tmp_path, device_type="cpu", dtype="float32")
    settings = {"device_type": "cuda", "dtype": "bfloat16", "reuse_cache": False}
    found, _ = scores(tmp_path, **settings, max_batch_tokens_size=chunk)
    assert len(found) == sum(LENGTHS) - len(LENGTHS)
    assert (found - exact).abs().mean() < 0.05 * exact.std()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_decoded_tokens_are_those_of_the_cpu(tmp_path, dtype):
    """Captured and eager; in 16 bits a close call may go otherwise after some tokens."""
    save_model(tmp_path, "deepseek_v3", seed=7, **SETTINGS)
    _, expected = scores(tmp_path, device_type="cpu", dtype="float32")
    for graphs in (False, True):
        _, tokens = scores(tmp_path, device_type="cuda", dtype=dtype, enable_graphs=graphs)
        least = 40 if dtype == "float32" else 8
        for ours, theirs in zip(tokens, expected, strict=True):
            assert ours[:least] == theirs[:least]
