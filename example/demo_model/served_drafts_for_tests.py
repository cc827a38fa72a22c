# SPDX-License-Identifier: Apache-2.0
"""The demos in an engine that drafts: the tokens as without, and enough of the drafts count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from example.demo_model.training import data
from rtp_llm.testing.engine.tiny_engine import TinyEngine

_FLOOR = 2.2  # tokens of a step that verifies three drafts


def assert_served_drafts(folder: Path, kind: str, **drafting: Any) -> None:
    """Check the drafts for 40 held-out questions of a ``kind``, in float32."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = data.held_out_prompts(tokenizer)[kind][:40]
    answers = []
    for settings in ({}, {"num_speculative_tokens": 3, **drafting}):
        engine = TinyEngine(folder, max_seq_len=512, kv_cache_mem_mb=64, **settings)
        ids = [engine.add(prompt, max_tokens=128) for prompt in prompts]
        engine.run()
        answers.append([engine.outcomes[each, 0].tokens for each in ids])
    assert answers[0] == answers[1]
    stats = engine.engine.stats()
    length = 1 + stats.spec_decode_num_accepted_tokens / stats.spec_decode_num_drafts
    assert length >= _FLOOR, f"a step gives {length:.2f} tokens"
