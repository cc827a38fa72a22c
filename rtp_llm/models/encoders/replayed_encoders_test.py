# SPDX-License-Identifier: Apache-2.0
"""Steps of encoders that run padded, on arrays that stay in place, give what eager steps do.

On a GPU they are graphs: gpu_encoder_test.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.engine.whole_prompts import (
    PROMPT_BATCHES,
    PROMPT_TOKENS,
    capture_all,
    mean_states,
)
from rtp_llm.testing.models.encoder_models import save_encoder


@pytest.mark.parametrize("kind", ["bert", "modernbert", "gemma3", "mpnet"])
def test_padded_steps_give_the_same_vectors(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_encoder(tmp_path, kind)
    eager = TinyEngine(tmp_path, max_batch_tokens_size=PROMPT_TOKENS)
    replays = capture_on_cpu(monkeypatch)
    captured = TinyEngine(tmp_path, enable_graphs=True, max_batch_tokens_size=PROMPT_TOKENS)
    capture_all(captured)
    for lengths, size in PROMPT_BATCHES:
        expected = mean_states(eager, lengths, pairs=kind == "bert")
        found = mean_states(captured, lengths, pairs=kind == "bert")
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert replays == {size: 1}
        replays.clear()
    captured.assert_all_free()
