# SPDX-License-Identifier: Apache-2.0
"""Draft heads and models on a GPU: the tokens of an engine without drafts, and graphs that draft
what eager steps do; skipped without one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.testing.engine.draft_steps_by_hand import DRAFT_CASES, DraftStepsByHand
from rtp_llm.testing.engine.steps_by_hand import Case
from rtp_llm.testing.models.eagle3_models import save_eagle3_head
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import host_never_waits, usable_gpu

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
DEVICE = usable_gpu()
pytestmark = pytest.mark.skipif(DEVICE is None, reason="no GPU, or not built for the one there is")
CAPTURES = pytest.mark.skipif(
    DEVICE is None or not DEVICE.supports("graph_capture"), reason="it captures no graphs"
)
LONGEST = 2048
WORDS = 11  # so few that random drafts are right now and then


def head_of(folder: Path, method: str, kind: str) -> dict[str, Any]:
    """Write a model, with its head; the settings of an engine that drafts."""
    settings: dict[str, Any] = {"speculative": method, "num_speculative_tokens": 3}
    if method == "mtp":
        save_mtp_model(folder / "model", kind, vocab_size=WORDS)
        return settings
    model = save_model(folder / "model", kind, vocab_size=WORDS)
    if method == "draft-model":
        sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
        windows = {"sliding_window": 9} if kind == "mistral" else {}
        draft = "mistral" if windows else "qwen3"
        save_model(folder / "head", draft, seed=5, vocab_size=WORDS, **sizes, **windows)
    else:
        save_eagle3_head(folder / "head", model, draft_vocab_size=WORDS - 2)
    return {**settings, "speculative_model": str(folder / "head")}


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("mtp", "qwen3_5"),
        ("mtp", "qwen3_5_moe"),
        ("mtp", "deepseek_v3"),
        ("eagle3", "llama"),
        ("eagle3", "qwen3_next"),
        ("draft-model", "llama"),
        ("draft-model", "qwen3_5"),
        ("draft-model", "mistral"),
    ],
)
def test_tokens_are_those_without_drafts(tmp_path: Path, method: str, kind: str) -> None:
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    assert DEVICE is not None
    drafts = head_of(tmp_path, method, kind)
    graphs = {"enable_graphs": bool(DEVICE.supports("graph_capture"))}
    outcomes, right = [], []
    for settings in ({}, {**drafts, "enable_graphs": False}, {**drafts, **graphs}):
        engine = TinyEngine(
            tmp_path / "model",
            device_type=DEVICE.name,
            allow_reference_ops=True,
            max_running_requests=12,
            **settings,
        )
        while engine.engine.has_idle_work:
            engine.engine.work_idle()
        for number in range(8):
            engine.add(
                random_prompt(5 + 13 * number, number, WORDS), max_tokens=24, ignore_eos=True
            )
            engine.step()
        engine.run()
        engine.assert_all_free()
        outcomes.append({key: outcome.tokens for key, outcome in engine.outcomes.items()})
        accepted = sum(outcome.accepted_drafts for outcome in engine.outcomes.values())
        assert (accepted > 0) is ("speculative" in settings)
        right.append(accepted)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert right[1] == right[2], "graphs find the drafts of eager steps"


@pytest.mark.parametrize(
    ("method", "kind"), [("mtp", "qwen3_5"), ("eagle3", "llama"), ("draft-model", "llama")]
)
def test_sampled_drafts_are_those_of_eager_steps(tmp_path: Path, method: str, kind: str) -> None:
    """In float32; greedy requests get the tokens that they have without drafts."""
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    assert DEVICE is not None
    drafts = {**head_of(tmp_path, method, kind), "draft_sample_method": "probabilistic"}
    graphs = {"enable_graphs": bool(DEVICE.supports("graph_capture"))}
    outcomes, right = [], []
    for settings in ({}, {**drafts, "enable_graphs": False}, {**drafts, **graphs}):
        engine = TinyEngine(
            tmp_path / "model",
            device_type=DEVICE.name,
            allow_reference_ops=True,
            max_running_requests=12,
            **settings,
        )
        while engine.engine.has_idle_work:
            engine.engine.work_idle()
        for number in range(8):
            options = {"temperature": 1.5, "seed": number} if number % 2 else {}
            prompt = random_prompt(5 + 13 * number, number, WORDS)
            engine.add(prompt, max_tokens=24, ignore_eos=True, **options)
            engine.step()
        engine.run()
        engine.assert_all_free()
        outcomes.append({key: outcome.tokens for key, outcome in engine.outcomes.items()})
        right.append(sum(outcome.accepted_drafts for outcome in engine.outcomes.values()))
    assert outcomes[1] == outcomes[2] and right[1] == right[2] > 0
    greedy = [key for key in outcomes[0] if key[0] % 2]
    assert [outcomes[0][key] for key in greedy] == [outcomes[1][key] for key in greedy]
    assert outcomes[0] != outcomes[1]


# How far rounding moves numbers of about 1, and the share of drafts that it leaves as they are.
STEPS = {
    "float32 qwen3_5": (1e-3, 1.0),
    "float32 qwen3_5_moe": (1e-3, 1.0),
    "float32 eagle3": (1e-3, 1.0),
    "float32 draft-model": (1e-3, 1.0),
    "bfloat16 deepseek_v3": (0.1, 0.75),
    "bfloat16 eagle3": (0.1, 0.75),
    "bfloat16 draft-model": (0.1, 0.75),
    "bfloat16 windows": (0.1, 0.75),  # of a draft model
}
Made = Callable[[str], DraftStepsByHand]


@pytest.fixture(scope="module")
def steps_of(tmp_path_factory: pytest.TempPathFactory) -> Made:
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    made: dict[str, DraftStepsByHand] = {}

    def steps(name: str) -> DraftStepsByHand:
        assert DEVICE is not None
        dtype, kind = name.split()
        if kind == "deepseek_v3" and DEVICE.name != "cuda":
            pytest.skip("MLA has no kernels for this device")
        if name not in made:
            folder, head = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("head")
            settings: dict[str, Any] = {"speculative": "mtp"}
            if kind in ("eagle3", "draft-model", "windows"):
                model = save_model(folder, "llama", head_dim=64)
                if kind == "eagle3":
                    save_eagle3_head(head, model, draft_vocab_size=90, head_dim=64)
                elif kind == "windows":
                    save_model(head, "mistral", seed=5, head_dim=64, sliding_window=24)
                else:
                    save_model(head, "qwen3", seed=5, head_dim=64, num_hidden_layers=2)
                method = "eagle3" if kind == "eagle3" else "draft-model"
                settings = {"speculative": method, "speculative_model": str(head)}
            else:
                save_mtp_model(folder, kind)
            made[name] = DraftStepsByHand(
                TinyEngine(
                    folder,
                    device_type=DEVICE.name,
                    dtype=dtype,
                    seq_size_per_block=16,
                    num_speculative_tokens=3,
                    max_running_requests=16,
                    enable_graphs=False,
                    **settings,
                )
            )
        return made[name]

    return steps


@CAPTURES
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("case", DRAFT_CASES, ids=str)
def test_replays_draft_and_write_what_eager_steps_do(steps_of: Made, name: str, case: Case) -> None:
    steps, (near, share) = steps_of(name), STEPS[name]
    steps.check_drafts(case, steps.graphs(LONGEST, case.size), near, share)


@CAPTURES
@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("name", ["float32 qwen3_5_moe", "float32 draft-model"])
def test_the_host_waits_for_nothing(steps_of: Made, name: str, replayed: bool) -> None:
    """Neither in eager steps nor in replayed ones; see host_never_waits."""
    assert DEVICE is not None
    steps, case = steps_of(name), DRAFT_CASES[0]
    graphs = steps.graphs(LONGEST, case.size) if replayed else None
    steps.compute_prefixes(case)
    plan = steps.plan(case.lengths, case.prefixes)
    steps.reset()
    with torch.inference_mode():
        steps.run(plan, graphs, samples=False)
        DEVICE.synchronize()
        with host_never_waits():
            steps.run(plan, graphs, samples=False)
        DEVICE.synchronize()
