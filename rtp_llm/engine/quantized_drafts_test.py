# SPDX-License-Identifier: Apache-2.0
"""Drafts for models with quantised weights: the answers are those of the same model without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.engine.drafting_models import (
    WORDS,
    accepted,
    compare,
    run,
    save_drafting_model,
)
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.fp8_checkpoints import store_as_fp8
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.stored_checkpoints import PACKINGS, projections, store_packed
from rtp_llm.testing.models.transformers_models import random_prompt


def play(engine: TinyEngine) -> None:
    """Greedy and seeded requests that arrive between steps."""
    for number in range(8):
        prompt = random_prompt(5 + 6 * number, seed=number, vocabulary=WORDS)
        options: dict[str, Any] = {"temperature": 0.8, "seed": number} if number % 2 else {}
        engine.add(prompt, ignore_eos=True, max_tokens=24, **options)
        engine.step()


@pytest.mark.parametrize("quantization", ["int8", "w8a8_int8"])
@pytest.mark.parametrize(
    "kind",
    ["mtp qwen3_5", "eagle3 llama", "draft-model llama llama", "ngram qwen3_5", "suffix llama"],
)
def test_int8_weights(tmp_path: Path, kind: str, quantization: str) -> None:
    model = save_drafting_model(tmp_path, kind)
    with each_token_alone():  # so that verifying in one step rounds as decoding does
        plain = run(model.folder, play, quantization=quantization)
        drafting = {**model.settings, "quantization": quantization, "enable_overlap": True}
        engine = run(model.folder, play, **drafting)
    compare(engine, plain)
    assert accepted(engine) > 0


@pytest.mark.parametrize("head_as_fp8", [False, True])
@pytest.mark.parametrize("kind", ["qwen3_5", "deepseek_v3"])
def test_fp8_checkpoints(tmp_path: Path, kind: str, head_as_fp8: bool) -> None:
    """Many keep their head in bfloat16 and do not say so: the stored types decide."""
    folder, head = tmp_path / "model", "mtp." if kind == "qwen3_5" else "model.layers.3."
    wide_heads = {"head_dim": 128} if kind == "qwen3_5" else {}
    save_mtp_model(folder, kind, vocab_size=WORDS, **wide_heads)
    wide = store_as_fp8(
        folder, lambda name: projections(name) and (head_as_fp8 or not name.startswith(head))
    )
    with each_token_alone():
        plain = run(wide, play)
        both = [run(each, play, speculative="mtp") for each in (folder, wide)]
    for engine in both:
        compare(engine, plain)
    assert accepted(both[0]) == accepted(both[1]) > 0


@pytest.mark.parametrize("packing", ["w8a16", "modelopt nvfp4"])
def test_other_stored_formats(tmp_path: Path, packing: str) -> None:
    """Of the multi-token prediction layer as well."""
    folder = tmp_path / "model"
    save_mtp_model(folder, "qwen3_5", vocab_size=WORDS, head_dim=128)
    store_packed(folder, PACKINGS[packing])
    with each_token_alone():
        plain = run(folder, play)
        engine = run(folder, play, speculative="mtp")
    compare(engine, plain)
    assert accepted(engine) > 0


@pytest.mark.parametrize("packing", ["w8a16", "nvfp4"])
def test_eagle_heads_draft_for_stored_formats(tmp_path: Path, packing: str) -> None:
    """The head is in floats, as published ones are."""
    model = save_drafting_model(tmp_path, "eagle3 llama")
    store_packed(model.folder, PACKINGS[packing])
    with each_token_alone():
        plain = run(model.folder, play)
        engine = run(model.folder, play, **model.settings)
    compare(engine, plain)
    assert accepted(engine) > 0
