# SPDX-License-Identifier: Apache-2.0
"""Beam searches of all widths, length penalties and stop rules find what transformers finds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.testing.engine.beam_reference import expected_beams, score_of
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

WORDS, STOPS, LENGTH = 97, (2, 5), 14
PENALTIES = (-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
RULES: tuple[Any, ...] = (False, True, "never")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("model")
    reference = save_model(folder, "llama", vocab_size=WORDS, eos_token_id=STOPS[0])
    with each_token_alone():
        yield folder, reference


@pytest.mark.parametrize("width", range(2, 17))
def test_as_transformers(model: tuple[Path, Any], width: int) -> None:
    """A width of 1 is greedy search in transformers, and tested as such."""
    folder, reference = model
    engine = TinyEngine(folder, max_running_requests=40, max_seq_len=60)
    cases = [*enumerate(product(PENALTIES, RULES))]
    requests = []
    for number, (penalty, rule) in cases:
        search = BeamSearch(length_penalty=penalty, early_stopping=rule)
        prompt = random_prompt(3 + number, 100 * width + number, WORDS)
        given = {"n": width, "max_tokens": LENGTH, "stop_token_ids": STOPS[1:]}
        requests.append((engine.add(prompt, inputs={"beam_search": search}, **given), prompt))
    engine.run()
    engine.assert_all_free()
    for (request, prompt), (_, (penalty, rule)) in zip(requests, cases, strict=True):
        options = {"length_penalty": penalty, "early_stopping": rule}
        wanted, scores = expected_beams(reference, prompt, width, LENGTH, STOPS, **options)
        found = [engine.outcomes[request, index] for index in range(width)]
        assert [each.tokens for each in found] == wanted, options
        ours = [score_of(each, penalty) for each in found]
        assert ours == pytest.approx(scores, abs=1e-4, rel=1e-5)
