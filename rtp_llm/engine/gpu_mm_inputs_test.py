# SPDX-License-Identifier: Apache-2.0
"""Embeddings, positions of three axes and adapters on a GPU, with graphs; skipped without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.usable_gpu import usable_gpu

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
DEVICE = usable_gpu()
GPU = DEVICE and DEVICE.name
pytestmark = pytest.mark.skipif(GPU is None, reason="no GPU, or not built for the one there is")

SMALL: dict[str, Any] = {
    "seq_size_per_block": 16,
    "max_seq_len": 128,
    "max_running_requests": 8,
    "kv_cache_mem_mb": 4,
    "allow_reference_ops": True,
}


def outcomes(folder: Path, **settings: Any) -> list[list[int]]:
    """The tokens of prompts with images, of which some come twice; nothing is left afterwards."""
    from rtp_llm.testing.engine.tiny_engine import TinyEngine
    from rtp_llm.testing.models.spanned_prompts import Image, SpannedPrompt

    cat, dog = Image(4, 6, seed=1), Image(4, 6, seed=2)
    prompts = [
        SpannedPrompt.random(20, cat, 9),
        SpannedPrompt.random(20, dog, 9),
        SpannedPrompt.random(2, Image(2, 3, seed=3)),
        SpannedPrompt.random(31),
    ]
    engine = TinyEngine(folder, **{**SMALL, **settings})
    while engine.built.worker.runner.has_idle_work:
        engine.engine.work_idle()
    requests = []
    for _ in range(2):
        for prompt in prompts:
            wanted = {"max_tokens": 24, "ignore_eos": True}
            requests.append(engine.add(prompt.ids, inputs=prompt.inputs, **wanted))
        engine.run()
    cached = [engine.outcomes[each, 0].cached for each in requests]
    assert cached[4] == cached[5] == 48, "the same images"
    assert cached[1] <= 16, "another image"
    engine.assert_all_free()
    return [engine.outcomes[each, 0].tokens for each in requests]


@pytest.mark.parametrize(
    "settings",
    [
        {"enable_graphs": False},
        {"enable_graphs": True},
        {"enable_graphs": True, "max_batch_tokens_size": 20},
        {"enable_graphs": True, "speculative": "ngram", "num_speculative_tokens": 3},
    ],
    ids=["eager", "graphs", "chunks", "drafts"],
)
def test_tokens_are_those_of_the_cpu(tmp_path: Path, settings: dict[str, Any]) -> None:
    from rtp_llm.testing.models.spanned_prompts import save_spanned_model

    save_spanned_model(tmp_path)
    expected = outcomes(tmp_path, device_type="cpu")
    assert outcomes(tmp_path, device_type=GPU, **settings) == expected
