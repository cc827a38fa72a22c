# SPDX-License-Identifier: Apache-2.0
"""Grammars on two ranks, each with an engine process: replicas, and ranks that share experts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rtp_llm import LLM, SamplingParams, StructuredOutputsParams
from rtp_llm.testing.engine.grammars import save_spelling_model

pytestmark = pytest.mark.usefixtures("forked_processes")

PATTERNS = [rf"(red|green) [0-9]{{{length}}}" for length in range(2, 8)]


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_answers_obey_their_grammars_beside_free_ones(kind: str, tmp_path: Path) -> None:
    folder = save_spelling_model(tmp_path / "model", kind)
    settings: dict[str, Any] = {"data_parallel_size": 2, "dtype": "float32", "num_threads": 1}
    prompts = ["a prompt " * (1 + i) for i in range(2 * len(PATTERNS))]
    option_sets = [
        SamplingParams(
            temperature=1.0,
            seed=i,
            max_tokens=40,
            structured_outputs=StructuredOutputsParams(regex=PATTERNS[i // 2]) if i % 2 else None,
        )
        for i in range(len(prompts))
    ]
    with LLM(folder, kv_cache_mem_mb=8, **settings) as llm:
        outputs = llm.generate(prompts, option_sets, use_tqdm=False)
        for number in range(1, len(prompts), 2):
            answer = outputs[number].outputs[0]
            assert answer.finish_reason == "stop"
            assert re.fullmatch(PATTERNS[number // 2], answer.text)
        with pytest.raises(ValueError, match=r"(?i)grammar|lark|rule"):
            wrong = StructuredOutputsParams(grammar='start: "a" (')
            llm.generate(["a"], SamplingParams(structured_outputs=wrong), use_tqdm=False)
