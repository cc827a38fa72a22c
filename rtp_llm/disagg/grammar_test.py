# SPDX-License-Identifier: Apache-2.0
"""Answers whose first token another worker samples obey their grammar from there on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.disagg.decode.decode_connector import DecodeConnector
from rtp_llm.disagg.wire.messages import Prefilled
from rtp_llm.request.constraints import Thinking
from rtp_llm.testing.disagg.workers import SIZES, Pair
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.grammars import (
    VOCABULARY,
    SlowLibrary,
    cases,
    regex_case,
    save_spelling_model,
    text_of,
)
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt

CASES = cases(12, seed=5)
DIGITS = regex_case("[0-9]{12}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_spelling_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def pair(folder: Path) -> Iterator[Pair]:
    with each_token_alone():
        made = Pair(folder, **SIZES)
        yield made
        made.close()


def prompt(seed: int) -> list[int]:
    return random_prompt(10 + 3 * seed, seed, VOCABULARY - 40)


def test_answers_are_those_of_one_engine(folder: Path, pair: Pair) -> None:
    engine = TinyEngine(folder, **SIZES)
    thinking = Thinking(end_ids=(60, 61), budget=3)
    for number, case in enumerate(CASES):
        options: dict[str, Any] = {"temperature": 1.0, "seed": number, "max_tokens": 90}
        options |= {"grammar": case.grammar, "thinking": thinking if number % 3 == 0 else None}
        request = pair.decode.add(prompt(number), **options)
        pair.until(lambda request=request: pair.finished(request))  # type: ignore[misc]
        tokens = pair.decode.outcomes[request].tokens
        assert tokens == engine.tokens(prompt(number), **options)
        assert case.accepts(text_of(folder, tokens[5 * (number % 3 == 0) :]))
    assert pair.decode.transfers()["delivered"] == len(CASES)
    pair.settle()


@pytest.mark.parametrize("where", ["decode", "prefill"])
def test_a_wrong_grammar_fails_its_request_alone(
    pair: Pair, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled on either side, it fails there; the other request goes its way."""
    slow, wrong = SlowLibrary(monkeypatch), 'start: "a" ('
    right = pair.decode.add(prompt(2), grammar=DIGITS.grammar, max_tokens=60)
    worker = pair.decode if where == "decode" else pair.prefill
    bad = worker.add(prompt(1), grammar=wrong)
    slow.release = True
    pair.until(lambda: bad in worker.errors and pair.finished(right))
    assert worker.errors[bad].startswith("grammar: ")
    assert pair.decode.outcomes[right].finish == "stop"
    pair.settle()


def test_a_first_token_that_the_grammar_forbids_fails_the_request(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefill worker with another tokenizer, or none of ours."""
    take_first = DecodeConnector._receive_first

    def take_another(self: Any, awaited: Any, first: Prefilled) -> None:
        values = {name: getattr(first, name) for name in first.__struct_fields__}
        take_first(self, awaited, Prefilled(**{**values, "token": 200}))

    monkeypatch.setattr(DecodeConnector, "_receive_first", take_another)
    request = pair.decode.add(prompt(3), grammar=DIGITS.grammar, max_tokens=60)
    pair.until(lambda: pair.finished(request))
    assert pair.decode.errors[request].startswith("grammar: ")
    pair.settle()
