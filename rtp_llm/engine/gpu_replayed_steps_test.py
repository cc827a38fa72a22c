# SPDX-License-Identifier: Apache-2.0
"""Graphs of prompts, chunks after prefixes and verified drafts write and return the same as eager
steps, on a GPU; skipped without one. On the CPU: replayed_steps_test.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.testing.engine.steps_by_hand import CASES, Case, StepsByHand, replay_with
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.testing.usable_gpu import host_never_waits, usable_gpu
from rtp_llm.worker.graphs.step_graphs import StepGraphs
from rtp_llm.worker.inputs.graph_inputs import GraphInputs
from rtp_llm.worker.inputs.graph_sizes import GraphSize

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
DEVICE = usable_gpu()
pytestmark = pytest.mark.skipif(
    DEVICE is None or not DEVICE.supports("graph_capture"),
    reason="no GPU that captures graphs, or not built for the one there is",
)
BLOCK, LONGEST = 16, 2048


@dataclass(frozen=True)
class Kind:
    """A model and how its keys are kept; `near`: how far rounding moves numbers of about 1."""

    architecture: str
    dtype: str
    near: float
    settings: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "float32": Kind("qwen3", "float32", 1e-3),
    "bfloat16": Kind("qwen3", "bfloat16", 0.1, {}, {"head_dim": 64}),
    "window": Kind("mistral", "bfloat16", 0.1, {}, {"head_dim": 64, "sliding_window": 12}),
    "fp8": Kind("qwen3", "bfloat16", 0.3, {"kv_cache_dtype": "fp8_e4m3"}, {"head_dim": 64}),
    "experts": Kind("qwen3_moe", "float32", 1e-3),
    "mla": Kind("deepseek_v3", "bfloat16", 0.1),
    "hybrid": Kind("qwen3_next", "float32", 1e-3),
}
Made = Callable[[str], Any]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Made:
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    made: dict[str, TinyEngine] = {}

    def engine(name: str) -> TinyEngine:
        assert DEVICE is not None
        kind = KINDS[name]
        if kind.settings and not DEVICE.supports("quantized_kv_cache"):
            pytest.skip("no 8-bit KV cache on this device")
        if kind.architecture == "deepseek_v3" and DEVICE.name != "cuda":
            pytest.skip("MLA has no kernels for this device")
        if name not in made:
            folder: Path = tmp_path_factory.mktemp(name)
            save_model(folder, kind.architecture, seed=3, **kind.config)
            made[name] = TinyEngine(
                folder,
                device_type=DEVICE.name,
                dtype=kind.dtype,
                seq_size_per_block=BLOCK,
                enable_graphs=False,
                **kind.settings,
            )
        return made[name]

    return engine


def graphs_of(steps: StepsByHand, *sizes: GraphSize) -> StepGraphs:
    runner = steps.runner
    most = GraphSize(
        max(size.tokens for size in sizes),
        max(size.sequences for size in sizes),
        max(size.longest for size in sizes),
    )
    inputs = GraphInputs(runner.cache, runner.device, most, LONGEST, BLOCK)
    graphs = StepGraphs(runner._layers, inputs, runner.device, sizes)
    with torch.inference_mode():
        while not graphs.complete:
            graphs.capture_next()
    return graphs


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_replays_write_what_eager_steps_write(engines: Made, name: str, case: Case) -> None:
    steps = StepsByHand(engines(name))
    near = KINDS[name].near
    steps.check(case, replay_with(graphs_of(steps, case.size)), rtol=near, atol=near)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "hybrid"])
def test_one_set_of_graphs_serves_all_steps_in_turn(engines: Made, name: str) -> None:
    """What one replay leaves in the arrays does not reach the next one."""
    steps = StepsByHand(engines(name))
    graphs = graphs_of(steps, *dict.fromkeys(case.size for case in CASES))
    near = KINDS[name].near
    for case in (*CASES, *reversed(CASES)):
        steps.check(case, replay_with(graphs), rtol=near, atol=near)


def test_replays_wait_for_no_device(engines: Made) -> None:
    """Nor do they ask it for a number: what the host must know it has."""
    assert DEVICE is not None
    steps = StepsByHand(engines("bfloat16"))
    case = CASES[5]
    replay = replay_with(graphs_of(steps, case.size))
    plan = steps.plan(case.lengths, case.prefixes)
    with torch.inference_mode():
        replay(plan)
        DEVICE.synchronize()
        with host_never_waits():
            replay(plan)
        DEVICE.synchronize()
