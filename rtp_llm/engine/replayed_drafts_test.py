# SPDX-License-Identifier: Apache-2.0
"""Steps that draft, run padded on arrays that stay in place, leave what eager steps leave.

On a GPU they are graphs: gpu_draft_heads_test.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.testing.engine.draft_steps_by_hand import (
    DRAFT_CASES,
    DraftStepsByHand,
    SynchronizingOperators,
    counted_uploads,
)
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.steps_by_hand import Case
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.eagle3_models import save_eagle3_head
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.transformers_models import save_model

BLOCK, LONGEST = 8, 96
# Draft models whose cache is in the group of their model's, or in one of windows.
DRAFT_MODELS: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 2},
    "mistral": {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 9},
}
Made = Callable[[str], DraftStepsByHand]


@pytest.fixture(scope="module")
def steps_of(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made: dict[str, DraftStepsByHand] = {}

    def steps(name: str) -> DraftStepsByHand:
        if name not in made:
            folder: Path = tmp_path_factory.mktemp(name)
            settings: dict[str, Any] = {"speculative": "mtp"}
            if name in ("eagle3", *DRAFT_MODELS):
                head = tmp_path_factory.mktemp("head")
                target = save_model(folder, "qwen3_5" if name == "mistral" else "llama")
                if name == "eagle3":
                    save_eagle3_head(head, target, draft_vocab_size=90)
                else:
                    save_model(head, name, seed=5, **DRAFT_MODELS[name])
                method = "eagle3" if name == "eagle3" else "draft-model"
                settings = {"speculative": method, "speculative_model": str(head)}
            else:
                save_mtp_model(folder, name)
            made[name] = DraftStepsByHand(
                TinyEngine(
                    folder,
                    seq_size_per_block=BLOCK,
                    kv_cache_mem_mb=2,
                    num_speculative_tokens=3,
                    max_running_requests=16,
                    **settings,
                )
            )
        return made[name]

    return steps


@pytest.mark.parametrize("name", ["qwen3_5_moe", "deepseek_v3", "eagle3", *DRAFT_MODELS])
@pytest.mark.parametrize("case", DRAFT_CASES, ids=str)
def test_replays_leave_what_eager_steps_leave(
    steps_of: Made, name: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_of(name)
    capture_on_cpu(monkeypatch)
    graphs = steps.graphs(LONGEST, case.size)
    with torch.inference_mode():  # what a larger and longer step has left must not matter
        graphs.begin(steps.plan([1] * 4, [60] * 4))
    steps.check_drafts(case, graphs, near=1e-4)


@pytest.mark.parametrize("name", ["qwen3_5_moe", "llama"])
def test_one_set_of_graphs_serves_all_steps_in_turn(
    steps_of: Made, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_of(name)
    capture_on_cpu(monkeypatch)
    graphs = steps.graphs(LONGEST, *dict.fromkeys(case.size for case in DRAFT_CASES))
    for case in (*DRAFT_CASES, *reversed(DRAFT_CASES)):
        steps.check_drafts(case, graphs, near=1e-4)


# Eager steps upload more: for heads their slots, before the layers and after them; for draft
# models the tokens before those of the step.
UPLOADS = {
    "qwen3_5_moe": ["upload_all", "upload", "upload_all"],
    "llama": ["upload_all", "upload_all"],
}


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("name", UPLOADS)
def test_a_steady_step_copies_its_numbers_once_and_asks_for_none(
    steps_of: Made, name: str, replayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, case = steps_of(name), DRAFT_CASES[0]
    capture_on_cpu(monkeypatch)
    graphs = steps.graphs(LONGEST, case.size) if replayed else None
    steps.compute_prefixes(case)
    plan = steps.plan(case.lengths, case.prefixes)
    steps.reset()
    copied: list[str]
    with (
        torch.inference_mode(),
        counted_uploads(monkeypatch, steps.runner.device) as copied,
        SynchronizingOperators() as mode,
    ):
        steps.run(plan, graphs)
    assert copied == (["send"] if replayed else UPLOADS[name])
    assert not mode.synchronizing
