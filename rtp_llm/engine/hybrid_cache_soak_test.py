# SPDX-License-Identifier: Apache-2.0
"""Hybrid models under random prompts that share random prefixes: the cache changes no answer.

The fast test, hybrid_cache_test.py, has fewer requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.engine.shared_prefixes import SIZES, WORDS, Load
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.mtp_models import save_mtp_model

REQUESTS = 150
SPECULATION: dict[str, dict[str, Any]] = {
    "none": {},
    "mtp": {"speculative": "mtp", "num_speculative_tokens": 3},
    "ngram": {"speculative": "ngram", "num_speculative_tokens": 7},
    "suffix": {"speculative": "suffix", "num_speculative_tokens": 5},
}


@pytest.mark.parametrize("chunk", [16, 37, 64])
@pytest.mark.parametrize("speculation", SPECULATION)
@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_next", "qwen3_5_moe"])
def test_prefixes_that_random_prompts_share(
    tmp_path: Path, kind: str, speculation: str, chunk: int
) -> None:
    save_mtp_model(tmp_path, kind, vocab_size=WORDS)
    overlap = {"enable_overlap": chunk != 37, "max_batch_tokens_size": chunk}
    engine = TinyEngine(tmp_path, **SIZES, **SPECULATION[speculation], **overlap)
    load = Load(engine, seed=chunk, requests=REQUESTS)
    load.run()
    assert load.checked > REQUESTS // 2
    assert load.cached > 300
    assert load.states.reused > 100
    assert load.states.left > 100
