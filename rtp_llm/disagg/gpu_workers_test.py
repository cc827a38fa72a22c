# SPDX-License-Identifier: Apache-2.0
"""Two workers on one GPU give what one engine gives; skipped without one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpu

if TYPE_CHECKING:
    from rtp_llm.testing.disagg.workers import Pair
    from rtp_llm.testing.engine.tiny_engine import TinyEngine


def made_pair(folder: Path, **settings: object) -> Pair:
    from rtp_llm.testing.disagg.workers import Pair

    return Pair(folder, **settings)


def made_engine(folder: Path, **settings: object) -> TinyEngine:
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    return TinyEngine(folder, **settings)


# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
DEVICE = usable_gpu()
GPU = DEVICE and DEVICE.name
pytestmark = pytest.mark.skipif(GPU is None, reason="no GPU, or not built for the one there is")


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("architecture", ["qwen3", "mistral"])
def test_two_workers_give_the_tokens_of_one(
    architecture: str, graphs: bool, tmp_path: Path
) -> None:
    window = {"sliding_window": 40} if architecture == "mistral" else {}
    save_model(tmp_path, architecture, seed=7, **window)
    settings = {
        "device_type": GPU,
        "allow_reference_ops": True,
        "enable_graphs": graphs,
        "max_batch_tokens_size": 96,
        "max_running_requests": 16,
        "seed": 5,
    }
    pair, fused = made_pair(tmp_path, **settings), made_engine(tmp_path, **settings)
    prompts = [random_prompt(length, seed=length) for length in (1, 15, 16, 17, 95, 96, 97, 160)]
    requests = [pair.decode.add(prompt, max_tokens=24, ignore_eos=True) for prompt in prompts]
    sampled = pair.decode.add(random_prompt(50), temperature=0.8, top_k=20, seed=3, max_tokens=16)
    pair.until(lambda: pair.finished(*requests, sampled))
    for request, prompt in zip(requests, prompts, strict=True):
        alone = fused.tokens(prompt, max_tokens=24, ignore_eos=True)
        assert pair.decode.outcomes[request].tokens == alone
    alone = fused.tokens(random_prompt(50), temperature=0.8, top_k=20, seed=3, max_tokens=16)
    assert pair.decode.outcomes[sampled].tokens == alone
    assert pair.decode.transfers()["delivered"] == len(prompts) + 1
    pair.settle()
    pair.close()


@pytest.mark.parametrize(
    "method", ["mtp qwen3_5", "eagle3 llama", "draft-model llama llama", "ngram llama"]
)
def test_drafts_go_on_from_where_another_worker_ends(method: str, tmp_path: Path) -> None:
    from rtp_llm.testing.engine.drafting_models import WORDS, save_drafting_model

    model = save_drafting_model(tmp_path, method)
    settings = {
        "device_type": GPU,
        "allow_reference_ops": True,
        "max_batch_tokens_size": 96,
        "max_running_requests": 8,
        "speculative_adaptive": False,
        **model.settings,
    }
    pair, fused = made_pair(model.folder, **settings), made_engine(model.folder, **settings)
    prompts = [random_prompt(length, length, WORDS) for length in (1, 16, 40, 97, 130)]
    wanted = {"max_tokens": 40, "ignore_eos": True}
    requests = [pair.decode.add(prompt, **wanted) for prompt in prompts]
    pair.until(lambda: pair.finished(*requests))
    for request, prompt in zip(requests, prompts, strict=True):
        assert pair.decode.outcomes[request].tokens == fused.tokens(prompt, **wanted)
    assert pair.decode.transfers()["delivered"] == len(prompts)
    found, expected = (engine.stats() for engine in (pair.decode.engine, fused.engine))
    accepted = expected.spec_decode_num_accepted_tokens
    # A close call between drafts may be decided otherwise in another batch.
    assert found.spec_decode_num_accepted_tokens == pytest.approx(accepted, rel=0.1, abs=3)
    assert accepted > 0
    pair.settle()
    pair.close()


def test_loads_that_are_given_up_leave_nothing(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3", seed=7)
    pair = made_pair(tmp_path, device_type=GPU, allow_reference_ops=True, enable_graphs=False)
    for steps in range(6):
        request = pair.decode.add(random_prompt(150, seed=steps))
        for _ in range(steps):
            pair.step()
        pair.decode.engine.abort([(request, 0)])
        pair.settle()
    pair.close()


@pytest.mark.parametrize("blocks", [[1, 2, 3], [5, 1, 3]], ids=["a run", "scattered"])
def test_a_receive_buffer_waits_for_nothing(blocks: list[int], tmp_path: Path) -> None:
    """It is made after the next step was launched, and must not wait for that step."""
    from rtp_llm.worker.cache.transfer.layout import BlockPart

    torch_of_it: Any = DEVICE and DEVICE._backend
    if not hasattr(torch_of_it, "set_sync_debug_mode"):
        pytest.skip("this device finds no waits")
    save_model(tmp_path, "qwen3", seed=7)
    pair = made_pair(tmp_path, device_type=GPU, allow_reference_ops=True, enable_graphs=False)
    part = BlockPart(np.arange(3), np.arange(3), np.array(blocks))
    torch_of_it.set_sync_debug_mode("error")
    try:
        receive_buffer = pair.decode.connector._own.new_buffer([part])
        receive_buffer.arrived([layer for layer, _ in receive_buffer.rows])
        receive_buffer.finish()
    finally:
        torch_of_it.set_sync_debug_mode("default")
    pair.settle()
    pair.close()
