# SPDX-License-Identifier: Apache-2.0
"""Drafts and grammars: answers are those without drafts, whoever drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.engine.start.explain_speculation import explain_speculation
from rtp_llm.request.constraints import Thinking
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.grammars import (
    VOCABULARY,
    Case,
    cases,
    json_case,
    regex_case,
    text_of,
)
from rtp_llm.testing.engine.scripted_proposer import ScriptedProposer, ragged, right, wrong
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.eagle3_models import save_eagle3_head
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.speculative import methods

CASES = cases(20, seed=3)
KEYS = json_case(
    {
        "type": "object",
        "properties": {"first long name": {"enum": ["red"]}, "second": {"type": "boolean"}},
        "required": ["first long name", "second"],
        "additionalProperties": False,
    }
)
THINKING = Thinking(end_ids=(60, 61), begin_ids=(50,), budget=6)
DRAFTING: dict[str, dict[str, Any]] = {
    "ngram": {},
    "suffix": {},
    "grammar": {},
    "eagle3": {"speculative_model": "head"},
    "draft-model": {"speculative_model": "draft"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    sizes = {"vocab_size": VOCABULARY, "eos_token_id": 2}
    target = save_model(path / "model", "llama", **sizes)
    byte_level().save(str(path / "model" / "tokenizer.json"))
    save_eagle3_head(path / "head", target, draft_vocab_size=VOCABULARY - 2)
    save_model(path / "draft", "qwen3", seed=5, num_hidden_layers=1, **sizes)
    return path


def play(engine: TinyEngine) -> TinyEngine:
    """Grammars, thinking with and without one, and free rows, arriving between steps."""
    for number in range(30):
        case = CASES[number % len(CASES)] if number % 5 else None
        thinking = THINKING if number % 4 == 1 else None
        engine.add(
            random_prompt(3 + number, number % 3, 300),
            grammar=None if case is None else case.grammar,
            thinking=thinking,
            temperature=number % 3 / 2,
            seed=number,
            max_tokens=60,
            n=1 + number % 2,
            logprobs=1,
            speculate=number % 7 != 6,
        )
        if number % 3 == 0:
            engine.step()
    engine.run()
    assert not engine.failures
    engine.assert_all_free()
    return engine


@pytest.fixture(scope="module")
def plain(folder: Path) -> TinyEngine:
    with each_token_alone():
        return play(TinyEngine(folder / "model"))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("method", [*DRAFTING, "ngram on the device"])
def test_the_same_answers(
    folder: Path,
    plain: TinyEngine,
    method: str,
    overlap: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = method.split(maxsplit=1)[0]
    if name != method:
        monkeypatch.setattr(methods, "matches_on_device", lambda settings, device: True)
    settings = dict(DRAFTING[name])
    if "speculative_model" in settings:
        settings["speculative_model"] = str(folder / settings["speculative_model"])
    with each_token_alone():
        engine = play(
            TinyEngine(folder / "model", speculative=name, enable_overlap=overlap, **settings)
        )
    compare(engine, plain)
    drafts = sum(outcome.drafts for outcome in engine.outcomes.values())
    assert drafts > 0


def compare(engine: TinyEngine, plain: TinyEngine) -> None:
    assert engine.outcomes.keys() == plain.outcomes.keys()
    for key, outcome in engine.outcomes.items():
        expected = plain.outcomes[key]
        assert (outcome.tokens, outcome.finish) == (expected.tokens, expected.finish), key
        assert len(outcome.logprobs) == len(outcome.tokens)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("distort", [right, wrong, ragged])
@pytest.mark.parametrize("needs_tokens", [False, True])
def test_drafts_right_and_wrong(
    folder: Path, plain: TinyEngine, distort: Callable[..., Any], overlap: bool, needs_tokens: bool
) -> None:
    """What is verified is what the grammar lets through."""
    script = {
        request << 7 | index: outcome.tokens for (request, index), outcome in plain.outcomes.items()
    }
    proposer = ScriptedProposer(script, distort, needs_tokens=needs_tokens)
    with each_token_alone():
        engine = play(TinyEngine(folder / "model", proposer=proposer, enable_overlap=overlap))
    compare(engine, plain)
    accepted = sum(outcome.accepted_drafts for outcome in engine.outcomes.values())
    assert (accepted > 0) == (distort is not wrong)


# -- forced tokens -----------------------------------------------------------------------------


def steps_of(folder: Path, case: Case, **settings: Any) -> tuple[int, TinyEngine]:
    engine = TinyEngine(folder / "model", **settings)
    request = engine.add([5, 6, 7], grammar=case.grammar, max_tokens=90)
    steps = 0
    while engine.engine.has_work:
        engine.step()
        steps += engine.engine.can_go_on
    assert case.accepts(text_of(folder / "model", engine.outcomes[request, 0].tokens))
    return engine.engine.stats().steps, engine


def test_forced_tokens_are_drafts_that_save_steps(folder: Path) -> None:
    plain, _ = steps_of(folder, KEYS)
    fewer, engine = steps_of(folder, KEYS, speculative="grammar", num_speculative_tokens=7)
    outcome = engine.outcomes[1, 0]
    assert fewer <= plain - outcome.accepted_drafts // 2
    assert outcome.accepted_drafts > 0


def test_the_forced_end_of_thinking_is_drafted(folder: Path) -> None:
    engine = TinyEngine(folder / "model", speculative="grammar", num_speculative_tokens=3)
    thinking = Thinking(end_ids=(60, 61, 62, 63), budget=2)
    request = engine.add([5, 6, 7], thinking=thinking, max_tokens=8, ignore_eos=True)
    engine.run()
    outcome = engine.outcomes[request, 0]
    assert tuple(outcome.tokens[2:6]) == thinking.end_ids
    assert outcome.accepted_drafts == 3


def test_rows_without_a_constraint_do_not_wait_for_forced_tokens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TinyEngine(folder / "model", speculative="grammar", enable_overlap=True)
    free = engine.add([5, 6, 7], max_tokens=20, ignore_eos=True)
    engine.add([8, 9], grammar=regex_case("[0-9]{30}").grammar, max_tokens=50)
    steps = 0
    while engine.outcomes[free, 0].finish is None:
        engine.step()
        steps += 1
    assert steps == 20, "a token each step"
    engine.run()


def test_explain_says_who_waits() -> None:
    settings = Settings(model="m", speculative="grammar", enable_overlap=True)
    line = explain_speculation(settings, resolve_device("cpu"))
    assert "requests with a grammar" in line
    assert "whose steps do not overlap; all others do" in line
