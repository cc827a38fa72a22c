# SPDX-License-Identifier: Apache-2.0
"""Requests whose prompts repeat themselves, for tests of what drafts from the text so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "seed": 4},
    {"temperature": 1.0, "top_k": 3, "n": 3, "logprobs": 2},
    {"repetition_penalty": 1.2, "presence_penalty": -1.0},
    {"min_tokens": 12, "stop_token_ids": tuple(range(0, 199, 3))},
    {"logit_bias": {5: 90.0, 6: 89.5}, "temperature": 1.0},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny Llama; while a file has it, verifying in one step rounds as decoding does."""
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "llama")
    with each_token_alone():
        yield path


def run_repetitive(
    folder: Path,
    count: int,
    *,
    distinct: int,
    option_sets: Sequence[dict[str, Any]] = OPTIONS,
    **settings: Any,
) -> TinyEngine:
    """`count` requests to their end, with `distinct` prompts, each of which repeats itself."""
    engine = TinyEngine(folder, seed=3, **settings)
    for number in range(count):
        which = number % distinct
        prompt = random_prompt(4 + which, seed=which) * 3
        options = {"max_tokens": 40, "ignore_eos": True, **option_sets[number % len(option_sets)]}
        engine.add(prompt, **options)
    engine.run()
    engine.assert_all_free()
    return engine
