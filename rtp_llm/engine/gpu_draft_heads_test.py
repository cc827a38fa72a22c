"""Draft heads and models on a GPU: the tokens of an engine without drafts; skipped without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.eagle3_models import save_eagle3_head
from rtp_llm.testing.mtp_models import save_mtp_model
from rtp_llm.testing.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpu

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
DEVICE = usable_gpu()
pytestmark = pytest.mark.skipif(DEVICE is None, reason="no GPU, or not built for the one there is")
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
        save_model(folder / "head", "qwen3", seed=5, vocab_size=WORDS, **sizes)
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
    ],
)
def test_tokens_are_those_without_drafts(tmp_path: Path, method: str, kind: str) -> None:
    from rtp_llm.testing.tiny_engine import TinyEngine

    assert DEVICE is not None
    drafts = head_of(tmp_path, method, kind)
    graphs = {"enable_cuda_graph": bool(DEVICE.supports("graph_capture"))}
    outcomes = []
    for settings in ({}, {**drafts, "enable_cuda_graph": False}, {**drafts, **graphs}):
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
    assert outcomes[0] == outcomes[1] == outcomes[2]
