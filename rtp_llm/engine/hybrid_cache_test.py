# SPDX-License-Identifier: Apache-2.0
"""The prefix cache of hybrid models, in short; hybrid_cache_soak_test.py has all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.engine.shared_prefixes import SIZES, WORDS, Load
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.mtp_models import save_mtp_model


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("qwen3_next", {"max_batch_tokens_size": 16}),
        (
            "qwen3_5_moe",
            {"max_batch_tokens_size": 16, "enable_overlap": True, "speculative": "mtp"},
        ),
    ],
)
def test_prefixes_that_random_prompts_share(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    save_mtp_model(tmp_path, kind, vocab_size=WORDS)
    load = Load(TinyEngine(tmp_path, **SIZES, **settings), seed=16, requests=40)
    load.run()
    assert load.checked > 20
    assert load.cached > 20
    assert min(load.states.reused, load.states.left) > 30
