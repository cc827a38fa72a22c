# SPDX-License-Identifier: Apache-2.0
"""Every kind of draft, of every length: a hundred prompts get the answers of plain engines.

With and without overlap and graphs, in mixed batches, preempted, aborted in flight, and ended at
every place among accepted tokens. The fast tests have three lengths and fewer prompts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.engine.drafting_models import (
    DRAFT_MODELS,
    HEADS,
    TIGHT,
    WORDS,
    Model,
    accepted,
    compare,
    everything,
    save_drafting_model,
)
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.hybrid_model import plain_logits
from rtp_llm.testing.models.transformers_models import CLEAR_GAP, random_prompt

TEXTS = ("ngram llama", "ngram qwen3_5", "suffix mistral", "suffix qwen3_next")
KINDS = (*HEADS, *DRAFT_MODELS, *TEXTS)
LENGTHS, PROMPTS = range(1, 8), 100
PLACES = 24  # of an answer at which it ends
SHORT: dict[str, Any] = {"max_seq_len": 48, "max_running_requests": 16, "seq_size_per_block": 4}
Play = Callable[[TinyEngine], list[list[int]]]


class Soaked:
    """A model, and what plain engines over it say."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._plain: dict[tuple[str, str], tuple[TinyEngine, list[list[int]]]] = {}

    def plain(self, play: Play, **settings: Any) -> tuple[TinyEngine, list[list[int]]]:
        """What has played without drafts, and its prompts, the first of request 1."""
        key = play.__name__, repr(settings)
        if key not in self._plain:
            engine = TinyEngine(self.model.folder, seed=3, **settings)
            prompts = play(engine)
            finish(engine)
            self._plain[key] = engine, prompts
        return self._plain[key]

    def drafting(self, drafts: int, **settings: Any) -> TinyEngine:
        """An engine that takes up to so many drafts."""
        drafting = {**self.model.settings, "num_speculative_tokens": drafts}
        engine = TinyEngine(self.model.folder, seed=3, **drafting, **settings)
        while engine.engine.has_idle_work:  # graphs are captured before the first request
            engine.engine.work_idle()
        return engine

    def agree(self, engine: TinyEngine, plain: TinyEngine, prompts: list[list[int]]) -> None:
        """The same tokens, but where a state's rounding decides between two of them."""
        differing = [
            key
            for key, outcome in engine.outcomes.items()
            if not same(outcome, plain.outcomes[key])
        ]
        assert len(differing) <= (len(prompts) // 25 if "qwen3" in self.model.kind else 0)
        for key in differing:
            mine, other = engine.outcomes[key].tokens, plain.outcomes[key].tokens
            agreed = [one == another for one, another in zip(mine, other, strict=False)].index(
                False
            )
            history = [*prompts[key[0] - 1], *other[:agreed]]
            best = plain_logits(engine.built.worker.runner.model, history)[-1].topk(2)
            assert float(best.values[0] - best.values[1]) < CLEAR_GAP, key


def same(outcome: Outcome, expected: Outcome) -> bool:
    """As far as it got, if it was aborted."""
    if outcome.finish is None:
        return outcome.tokens == expected.tokens[: len(outcome.tokens)]
    return (outcome.tokens, outcome.finish) == (expected.tokens, expected.finish)


def finish(engine: TinyEngine) -> None:
    engine.run()
    engine.assert_all_free()


@pytest.fixture(scope="module", params=KINDS)
def soaked(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soaked]:
    folder: Path = tmp_path_factory.mktemp("model")
    with each_token_alone():  # so that verifying in one step rounds as decoding does
        yield Soaked(save_drafting_model(folder, request.param))


def a_hundred(engine: TinyEngine) -> list[list[int]]:
    """Prompts that arrive between steps, some of them again."""
    prompts = []
    for number in range(PROMPTS):
        prompts.append(random_prompt(1 + 11 * number % 50, number % 70, WORDS))
        engine.add(prompts[-1], ignore_eos=True, max_tokens=8 + number % 25)
        if number % 4 == 0:
            engine.step()
    return prompts


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("drafts", LENGTHS)
def test_a_hundred_prompts(
    soaked: Soaked, drafts: int, overlap: bool, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, prompts = soaked.plain(a_hundred)
    counts = capture_on_cpu(monkeypatch) if graphs else {}
    engine = soaked.drafting(
        drafts, enable_overlap=overlap, max_running_requests=6, max_batch_tokens_size=48
    )
    a_hundred(engine)
    finish(engine)
    soaked.agree(engine, plain, prompts)
    assert accepted(engine) > 10
    assert (sum(counts.values()) > 50) == graphs


def long_answers(engine: TinyEngine) -> list[list[int]]:
    """More than a small cache holds."""
    prompts = [random_prompt(30 + number, number, WORDS) for number in range(12)]
    for prompt in prompts:
        engine.add(prompt, ignore_eos=True, max_tokens=200)
    return prompts


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("drafts", LENGTHS)
def test_preemption(soaked: Soaked, drafts: int, overlap: bool) -> None:
    plain, prompts = soaked.plain(long_answers)
    memory = (
        2 if soaked.model.settings["speculative"] == "draft-model" else 1
    )  # it has a cache, too
    tight = {**TIGHT, "max_seq_len": 250, "max_batch_tokens_size": 128, "kv_cache_mem_mb": memory}
    engine = soaked.drafting(drafts, enable_overlap=overlap, **tight)
    long_answers(engine)
    finish(engine)
    soaked.agree(engine, plain, prompts)
    fits = soaked.model.kind == "deepseek_v3"  # its latents are small
    assert fits or engine.engine.stats().preemptions > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("drafts", LENGTHS)
def test_aborts_in_flight(soaked: Soaked, drafts: int, overlap: bool) -> None:
    plain, prompts = soaked.plain(a_hundred)
    engine = soaked.drafting(drafts, enable_overlap=overlap, max_running_requests=6)
    chance, aborted = random.Random(drafts), 0
    for number, prompt in enumerate(prompts):
        engine.add(prompt, ignore_eos=True, max_tokens=8 + number % 25)
        engine.step()
        alive = [key for key, outcome in engine.outcomes.items() if outcome.finish is None]
        if alive and chance.random() < 0.3:
            engine.engine.abort([chance.choice(alive[:8])])
            aborted += 1
    finish(engine)
    soaked.agree(engine, plain, prompts)
    assert aborted > 20


def every_end(engine: TinyEngine) -> list[list[int]]:
    """Answers that end at each place: by a stop token, their length, the longest sequence, EOS."""
    prompt = random_prompt(12, 5, WORDS)
    said = engine.tokens(prompt, ignore_eos=True, max_tokens=PLACES)
    prompts = [prompt]
    for place, token in enumerate(said):
        whole = random_prompt(SHORT["max_seq_len"] - 1 - place, 7, WORDS)
        option_sets: tuple[tuple[list[int], dict[str, Any]], ...] = (
            (prompt, {"stop_token_ids": (token,), "min_tokens": place, "ignore_eos": True}),
            (prompt, {"max_tokens": place + 1, "ignore_eos": True}),
            (whole, {"max_tokens": None, "ignore_eos": True}),
            (whole[: 20 - place % 12], {"min_tokens": place}),
        )
        for prompt, options in option_sets:
            prompts.append(prompt)
            engine.add(prompt, **{"max_tokens": PLACES, **options})
    return prompts


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("drafts", LENGTHS)
def test_every_end(soaked: Soaked, drafts: int, overlap: bool) -> None:
    plain, prompts = soaked.plain(every_end, **SHORT)
    engine = soaked.drafting(drafts, enable_overlap=overlap, **SHORT)
    every_end(engine)
    finish(engine)
    soaked.agree(engine, plain, prompts)
    ends = {outcome.finish for outcome in engine.outcomes.values()}
    assert ends == {"stop", "length"}
    assert accepted(engine) > 10


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("drafts", LENGTHS)
def test_all_options(soaked: Soaked, drafts: int, overlap: bool) -> None:
    """Seeded sampling, penalties, bans, log-probabilities."""
    plain = soaked.model.plain
    if plain is None:
        plain = soaked.model.plain = TinyEngine(soaked.model.folder, seed=3)
        everything(plain)
        finish(plain)
    engine = soaked.drafting(drafts, enable_overlap=overlap)
    everything(engine)
    finish(engine)
    compare(engine, plain)
