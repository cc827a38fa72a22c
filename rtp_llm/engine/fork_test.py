# SPDX-License-Identifier: Apache-2.0
"""Sequences that others continue in the middle of decoding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.messages import INDEX_MASK, RequestError
from rtp_llm.request.constraints import Thinking
from rtp_llm.testing.engine.drafting_models import TIGHT, WORDS, accepted, save_drafting_model
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.forks import CHANGED, TWIN, check_forks, play_forks, step_until
from rtp_llm.testing.engine.grammars import regex_case, save_spelling_model, text_of
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.heads.logits_processor import ProcessorRows
from rtp_llm.worker.speculative import methods

NGRAM: dict[str, Any] = {"speculative": "ngram", "num_speculative_tokens": 3}
SUFFIX: dict[str, Any] = {"speculative": "suffix", "num_speculative_tokens": 3}


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    with each_token_alone():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "llama", vocab_size=WORDS)
    return path


def greedy(engine: TinyEngine, prompt: list[int], count: int) -> list[int]:
    return engine.tokens(prompt, max_tokens=count, ignore_eos=True)


def check_changed(engine: TinyEngine, plain: TinyEngine) -> None:
    """A greedy sequence whose last token was replaced is as if that token had been asked."""
    prompt, source = random_prompt(5, 0, WORDS), engine.outcomes[1, 0].tokens
    changed = engine.outcomes[1, CHANGED].tokens
    asked = 1 + next(place for place in range(24) if changed[place] != source[place])
    assert changed[asked:] == greedy(plain, [*prompt, *changed[:asked]], 24 - asked)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("drafts", ["", "ngram", "suffix", "device"])
def test_forks_go_on_as_their_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch, drafts: str, overlap: bool
) -> None:
    if drafts == "device":
        monkeypatch.setattr(methods, "matches_on_device", lambda settings, device: True)
    drafting = {"": {}, "suffix": SUFFIX}.get(drafts, NGRAM)
    engine = TinyEngine(folder, enable_overlap=overlap, **TIGHT, **drafting)
    play_forks(engine, WORDS)
    check_forks(engine)
    check_changed(engine, TinyEngine(folder, **TIGHT))
    proposer = engine.engine._proposer
    assert drafts in ("", "device") or proposer.native.num_sequences == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["mtp qwen3_5", "eagle3 llama", "draft-model llama llama"])
def test_with_drafts_of_a_model(kind: str, tmp_path: Path) -> None:
    model = save_drafting_model(tmp_path, kind)
    plain = TinyEngine(model.folder, **TIGHT)
    play_forks(plain, WORDS)
    check_forks(plain)
    engine = TinyEngine(model.folder, **TIGHT, **model.settings)
    play_forks(engine, WORDS)
    check_forks(engine)
    assert accepted(engine) > 0
    for key, outcome in engine.outcomes.items():
        if key[1] in (0, TWIN):
            assert outcome.tokens == plain.outcomes[key].tokens
    check_changed(engine, plain)


def test_sampled_drafts(tmp_path: Path) -> None:
    model = save_drafting_model(tmp_path, "eagle3 llama")
    engine = TinyEngine(
        model.folder, draft_sample_method="probabilistic", **TIGHT, **model.settings
    )
    request = engine.add(
        random_prompt(9, 1, WORDS), temperature=1.0, seed=3, max_tokens=24, ignore_eos=True
    )
    step_until(engine, request, 5)
    engine.fork(request, [1, 2])
    engine.run()
    engine.assert_all_free()
    assert len({tuple(outcome.tokens) for outcome in engine.outcomes.values()}) == 3


@pytest.mark.parametrize("speculative", ["none", "ngram", "grammar"])
def test_grammars_and_thinking(tmp_path: Path, speculative: str) -> None:
    folder = save_spelling_model(tmp_path)
    case = regex_case(r"[a-f]{2}-[0-9]{6}-[a-f]{4,9}")
    thinking = Thinking(end_ids=(60, 61), begin_ids=(50,), budget=6)
    engine = TinyEngine(folder, speculative=speculative)
    for number, thoughts in enumerate((None, thinking, None, thinking)):
        options: dict[str, Any] = {"grammar": case.grammar, "thinking": thoughts, "max_tokens": 60}
        options |= {"logit_bias": {50: 50.0}} if thoughts else {}
        request = engine.add(
            random_prompt(5, number, 300), temperature=number // 2, seed=1, **options
        )
        outcome = step_until(engine, request, 4 + 6 * (number // 2))
        engine.fork(request, [1], seeds=[1])
        engine.fork(request, [2])
        for token in (2,) if thoughts else (2, 1):  # an end, and what the grammar forbids
            with pytest.raises(RequestError, match="last_tokens: grammar: ") as caught:
                engine.fork(request, [3], last_tokens=[token])
        assert f"request_id={request}, index=0" in str(caught.value)
        if thoughts is None:
            engine.fork(request, [4], last_tokens=outcome.tokens[-1:])
    engine.run()
    engine.assert_all_free()
    for outcome in engine.outcomes.values():
        answer = outcome.tokens
        if answer[0] == 50:
            answer = answer[answer.index(61) + 1 :]
        assert case.accepts(text_of(folder, answer))
    for request in range(1, 5):
        assert engine.outcomes[request, 0].tokens == engine.outcomes[request, 1].tokens
    assert not engine.engine._constraints._by_id


class _Recording:
    """A logits processor that bans what has been said."""

    def __init__(self) -> None:
        self.sequences: set[int] = set()

    def __call__(self, logits: Any, rows: ProcessorRows) -> None:
        for row, sequence in enumerate(rows.sequence_ids.tolist()):
            self.sequences.add(sequence & INDEX_MASK)
            logits[row, rows.history(row)] = float("-inf")


def test_logits_processors_see_forks(folder: Path) -> None:
    engine, processor = TinyEngine(folder, **TIGHT), _Recording()
    request = engine.add([3], processors=[processor], max_tokens=9, ignore_eos=True)
    step_until(engine, request, 3)
    engine.fork(request, [5])
    engine.run()
    assert processor.sequences == {0, 5}
    assert engine.outcomes[request, 0].tokens == engine.outcomes[request, 5].tokens
    assert len({3, *engine.outcomes[request, 5].tokens}) == 10
    assert not engine.built.worker.sampler._processors._members


@pytest.mark.parametrize("overlap", [False, True])
def test_forks_outlive_their_source(folder: Path, overlap: bool) -> None:
    prompt = random_prompt(13, 4, WORDS)
    expected = greedy(TinyEngine(folder, **TIGHT), prompt, 24)
    engine = TinyEngine(folder, enable_overlap=overlap, **TIGHT)
    request = engine.add(prompt, max_tokens=24, ignore_eos=True)
    for parent, child, count in ((0, 1, 4), (1, 2, 9), (2, 3, 16)):
        while len(engine.outcomes[request, parent].tokens) < count:
            engine.step()
        made = engine.outcomes[request, child] = engine.outcomes[request, parent]
        engine.engine.fork((request, parent), [child])
        engine.engine.abort([(request, parent)])
        assert len(made.tokens) < 24
    engine.run()
    engine.assert_all_free()
    assert engine.outcomes[request, 3].tokens == expected


def test_forks_without_a_place_and_preempted_ones(folder: Path) -> None:
    settings = {**TIGHT, "max_running_requests": 2, "kv_cache_mem_mb": 1}
    prompts = [random_prompt(9, seed, WORDS) for seed in range(2)]
    plain = TinyEngine(folder, **TIGHT)
    expected = [greedy(plain, prompt, 30) for prompt in prompts]
    engine = TinyEngine(folder, max_queued_requests=8, **settings)
    for prompt in prompts:
        engine.add(prompt, max_tokens=30, ignore_eos=True)
    step_until(engine, 2, 6)
    engine.fork(1, [1, 2])
    assert engine.engine.stats().waiting == 2
    engine.fork(1, [3])
    engine.run()
    engine.assert_all_free()
    for (request, _), outcome in engine.outcomes.items():
        assert outcome.tokens == expected[request - 1]


def test_what_cannot_be_forked_is_refused(folder: Path) -> None:
    engine = TinyEngine(folder, max_queued_requests=8, **TIGHT)
    request = engine.add(random_prompt(70, 1, WORDS), max_tokens=9, ignore_eos=True)

    def refuse(problem: str, indexes: list[int], kind: str = "invalid", **more: Any) -> None:
        with pytest.raises(RequestError, match=problem) as caught:
            engine.fork(request, indexes, **more)
        assert caught.value.kind == kind

    refuse("has no output yet", [1])
    engine.step()
    refuse("has no output yet", [1])
    step_until(engine, request, 1)
    refuse("is in use", [0])
    refuse("is in use", [2, 2])
    refuse(rf"indexes \[{INDEX_MASK + 1}\] are not from 0 to", [INDEX_MASK + 1])
    refuse("2 last_tokens for 1 ids", [1], last_tokens=[3, 4])
    refuse("last_tokens", [1], last_tokens=[WORDS])
    refuse("1 seeds for 2 sequences", [1, 2], seeds=[3])
    refuse("the queue is full", list(range(1, 30)), "queue_full")
    engine.run()
    refuse("does not exist", [1])
    engine.assert_all_free()
