# SPDX-License-Identifier: Apache-2.0
"""Published weights: what quantised activations cost Gemma 3 270M of a Q4_K_M file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtp_llm import LLM
from rtp_llm.testing.gguf.gemma_reference import gemma_reference
from rtp_llm.testing.gguf.readings import compare, read, read_in_transformers
from rtp_llm.text.tokenizer import Tokenizer
from tools.dev.published import GEMMA, fetch
from tools.dev.steps import StepError

TOKENS = 1000
TEXTS = ("docs/python_api.md", "docs/serving.md", "LICENSE", "rtp_llm/text/tokenizer.py")
ROOT = Path(__file__).resolve().parents[1]


def test_quantised_activations() -> None:
    try:
        file = fetch(GEMMA)
    except StepError as error:
        pytest.skip(f"{GEMMA.title}: {error.what}")
    tokenizer = Tokenizer.from_folder(file)
    texts = [tokenizer.encode((ROOT / name).read_text())[:TOKENS] for name in TEXTS]
    model = gemma_reference(file)
    expected = [read_in_transformers(model, text) for text in texts]
    with LLM(file, dtype="float32", kv_cache_mem_mb=64, max_seq_len=1024) as llm:
        found = compare([read(llm, text) for text in texts], expected)
    print(found, sum(map(len, texts)))
    assert abs(found.ratio) < 0.002, found
    assert found.equal >= 0.97, found
