# SPDX-License-Identifier: Apache-2.0
"""N-grams matched on a GPU: the host's drafts, the tokens without drafts; skipped without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpu

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
DEVICE = usable_gpu()
pytestmark = pytest.mark.skipif(DEVICE is None, reason="no GPU, or not built for the one there is")
WORDS = 11  # so few that random text repeats itself
SETTINGS: dict[str, Any] = {"allow_reference_ops": True, "max_running_requests": 12}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path, "llama", vocab_size=WORDS)
    return tmp_path


def play(engine: Any) -> dict[tuple[int, int], list[int]]:
    while engine.engine.has_idle_work:
        engine.engine.work_idle()
    for number in range(16):
        prompt = random_prompt(5 + 13 * number % 90, number, WORDS)
        engine.add(prompt, max_tokens=24, ignore_eos=True, n=1 + number % 2)
        engine.step()
        if number == 8:
            engine.engine.abort([(number, 0)])
    engine.run()
    engine.assert_all_free()
    del engine.outcomes[8, 0]  # it ended when it did
    return {key: outcome.tokens for key, outcome in engine.outcomes.items()}


@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_tokens_are_those_without_drafts(folder: Path, drafts: int) -> None:
    from rtp_llm.testing.engine.tiny_engine import TinyEngine
    from rtp_llm.worker.speculative.ngram_drafter import NgramDrafter

    assert DEVICE is not None
    ngram = {"speculative": "ngram", "num_speculative_tokens": drafts}
    graphs = {"enable_graphs": bool(DEVICE.supports("graph_capture"))}
    outcomes = []
    for settings in ({}, {**ngram, "enable_graphs": False}, {**ngram, **graphs}):
        engine = TinyEngine(folder, device_type=DEVICE.name, **SETTINGS, **settings)
        drafter = engine.built.worker.drafter
        assert isinstance(drafter, NgramDrafter) is ("speculative" in settings)
        outcomes.append(play(engine))
        accepted = engine.engine.stats().spec_decode_num_accepted_tokens
        assert (accepted > 20) is ("speculative" in settings)
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_drafts_are_those_of_the_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rtp_llm.testing.engine.ngram_comparison import ComparingEngine
    from rtp_llm.worker.speculative import methods

    assert DEVICE is not None
    # Its steps do not overlap, so that the host would match.
    monkeypatch.setattr(methods, "matches_on_device", lambda settings, device: True)
    engine = ComparingEngine(folder, 3, device_type=DEVICE.name, **SETTINGS)
    play(engine)
    assert engine.found > 100
