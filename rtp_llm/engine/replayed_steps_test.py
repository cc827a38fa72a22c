# SPDX-License-Identifier: Apache-2.0
"""Steps that run padded, on arrays that stay in place, write and give what eager steps do.

On a GPU they are graphs: gpu_replayed_steps_test.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rtp_llm.testing.engine.replays import Replays
from rtp_llm.testing.engine.steps_by_hand import CASES, Case, StepsByHand, replay_with
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.worker.inputs.graph_inputs import GraphInputs

BLOCK, LONGEST = 8, 96
KINDS = {
    "qwen3": {},
    "mistral": {"sliding_window": 12},
    "deepseek_v3": {},
    "deepseek_v32": {},
    "qwen3_next": {},
}
Made = Callable[[str], TinyEngine]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made: dict[str, TinyEngine] = {}

    def engine(kind: str) -> TinyEngine:
        if kind not in made:
            folder: Path = tmp_path_factory.mktemp(kind)
            save_model(folder, kind, seed=3, **KINDS[kind])
            made[kind] = TinyEngine(folder, seq_size_per_block=BLOCK, kv_cache_mem_mb=2)
        return made[kind]

    return engine


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_replays_write_what_eager_steps_write(engines: Made, kind: str, case: Case) -> None:
    steps = StepsByHand(engines(kind))
    runner = steps.runner
    inputs = GraphInputs(runner.cache, runner.device, case.size, LONGEST, BLOCK)
    inputs.clear()
    replays = Replays(runner._layers, inputs, case.size)
    # What an earlier step, larger and longer, has left in the arrays must not matter.
    inputs.write(steps.plan([1] * 4, [60] * 4), case.size)
    steps.check(case, replay_with(replays), rtol=1e-4, atol=1e-4)
