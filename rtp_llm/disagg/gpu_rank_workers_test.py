# SPDX-License-Identifier: Apache-2.0
"""Workers whose models are on several GPUs give one engine's tokens; skipped with fewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.device.cuda import CudaDevice
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpus

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
pytest.importorskip("zmq")
GPU, COUNT = usable_gpus()
pytestmark = pytest.mark.skipif(GPU != "cuda" or COUNT < 2, reason=f"{COUNT} usable GPUs")
TWO: dict[str, Any] = {"tensor_parallel_size": 2}
PROMPTS = [random_prompt(length, seed=length) for length in (1, 15, 16, 17, 95, 96, 97, 160)]


def settings(graphs: bool) -> dict[str, Any]:
    small = {"kv_cache_mem_mb": 64, "max_batch_tokens_size": 96, "max_running_requests": 16}
    return {**small, "device_type": GPU, "enable_graphs": graphs}


def alone(folder: Path, graphs: bool) -> list[list[int]]:
    """The tokens of one engine on one GPU."""
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    engine = TinyEngine(folder, **settings(graphs))
    return [engine.tokens(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("several", ["prefill", "decode"])
def test_one_rank_and_two(several: str, graphs: bool, tmp_path: Path) -> None:
    from rtp_llm.testing.disagg.workers import Pair

    save_model(tmp_path, "qwen3", seed=7)
    expected = alone(tmp_path, graphs)
    pair = Pair(tmp_path, **settings(graphs), **{several: TWO})
    assert [pair.tokens(prompt) for prompt in PROMPTS] == expected
    assert pair.decode.transfers()["delivered"] == len(PROMPTS)
    pair.settle()
    pair.close()


@pytest.mark.skipif(COUNT < 4, reason=f"{COUNT} usable GPUs")
@pytest.mark.parametrize("graphs", [False, True])
def test_two_ranks_each(graphs: bool, tmp_path: Path) -> None:
    from rtp_llm.testing.disagg.prefill_process import prefill_process
    from rtp_llm.testing.disagg.workers import decode_worker, step_until, tokens_of

    save_model(tmp_path, "qwen3", seed=7)
    expected = alone(tmp_path, graphs)
    last_two = CudaDevice().visible_devices().environment(2, 3)
    with (
        prefill_process(tmp_path, last_two, **settings(graphs), **TWO) as prefill,
        decode_worker(tmp_path, prefill.address, **settings(graphs), **TWO) as decode,
    ):
        assert [tokens_of(decode, prompt) for prompt in PROMPTS] == expected
        assert decode.transfers()["delivered"] == len(PROMPTS)
        step_until(decode, decode.is_idle)
