# SPDX-License-Identifier: Apache-2.0
"""Steps of beams that overlap find what steps in lockstep find, on a GPU; skipped without one. On
the CPU: beams_test.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm import ops
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpu

DEVICE = usable_gpu()
pytestmark = pytest.mark.skipif(DEVICE is None, reason="no GPU, or not built for the one there is")
STEPS = 60


def search(folder: Path, **settings: Any) -> tuple[list[list[int]], TinyEngine]:
    """The sequences that searches of several lengths find."""
    engine = TinyEngine(folder, max_running_requests=64, max_seq_len=256, **settings)
    for number, penalty in enumerate((0.0, 1.0, 2.0, -1.0, 1.5, 0.5)):
        inputs = {"beam_search": BeamSearch(length_penalty=penalty)}
        prompt = random_prompt(3 + 9 * number, number, 97)
        engine.add(prompt, n=5, max_tokens=STEPS + number, inputs=inputs)
    engine.run()
    engine.assert_all_free()
    return [outcome.tokens for _, outcome in sorted(engine.outcomes.items())], engine


@pytest.mark.parametrize("graphs", [False, True])
def test_overlapping_is_as_in_lockstep(tmp_path: Path, graphs: bool) -> None:
    assert DEVICE is not None
    save_model(tmp_path, "llama", vocab_size=97, eos_token_id=2)
    given = {"device_type": DEVICE.name, "enable_graphs": graphs}
    wanted, _ = search(tmp_path, enable_overlap=False, **given)
    ordered = ops.kernel_calls("order_beams")
    found, engine = search(tmp_path, enable_overlap=True, **given)
    assert found == wanted
    assert ops.kernel_calls("order_beams") - ordered > STEPS
    if graphs:
        assert engine.built.worker.runner._graphs._captured, "none was replayed"
