# SPDX-License-Identifier: Apache-2.0
"""Prompts and parameters at the edges of what offline generation takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm import LLM, SamplingParams, StructuredOutputsParams
from rtp_llm.testing.engine.tiny_llm import GREEDY, SMALL, save_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Any:
    with LLM(folder, **SMALL) as made:
        yield made


def test_all_log_probabilities_of_a_prompt(llm):
    size = llm.ready.vocab_size
    for wanted in (-1, size, size + 1, 2**31 - 1):
        params = SamplingParams(max_tokens=1, prompt_logprobs=wanted)
        (first, *rest) = llm.generate([[5, 6, 7]], params)[0].prompt_logprobs
        assert first is None
        for entry in rest:
            assert sorted(token for token, _ in entry.top) == list(range(size))
            assert dict(entry.top)[entry.token_id] == pytest.approx(entry.logprob)


def test_a_prompt_that_ends_inside_a_character_shows_nothing_in_the_answer(llm):
    half = llm.tokenizer.encode("😀")[:1]
    for outputs in (StructuredOutputsParams(choice=["yes", "no"]), None):
        yes = llm.tokenizer.encode("yes")[0]
        bias = {} if outputs else {yes: 100.0}
        params = SamplingParams(
            temperature=0, max_tokens=4, structured_outputs=outputs, logit_bias=bias
        )
        text = llm.generate([llm.tokenizer.encode("Hello ") + half], params)[0].outputs[0].text
        assert text in ("yes", "no") if outputs else text.startswith("y")


def test_an_engine_can_be_made_in_inference_mode(folder: Path) -> None:
    """Loading writes into weights that were made in other threads or modes."""
    with torch.inference_mode(), LLM(folder, quantization="int8", **SMALL) as other:
        made = other.generate("Once upon", GREEDY)[0].outputs[0]
    with LLM(folder, quantization="int8", **SMALL) as other:
        assert other.generate("Once upon", GREEDY)[0].outputs[0] == made
