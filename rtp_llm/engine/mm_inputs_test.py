# SPDX-License-Identifier: Apache-2.0
"""Embeddings and positions of three axes, through whatever happens to a sequence.

Tokens and log-probabilities are those of transformers (Qwen2-VL's text model).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.spanned_answers import COUNT, PROMPTS, SMALL, Answers, add, play
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.spanned_model import FACTORY
from rtp_llm.testing.models.spanned_prompts import Image, save_spanned_model
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.worker.inputs.embedding_store import EmbeddingStore, StepEmbeddings
from rtp_llm.worker.plan.step_plan import StepPlan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spanned")


@pytest.fixture(scope="module")
def answers(folder: Path) -> Answers:
    return Answers(save_spanned_model(folder))


def test_whole_prompts(folder: Path, answers: Answers) -> None:
    play(TinyEngine(folder, **SMALL, reuse_cache=False), answers)


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize("tokens", [3, 7])
def test_chunks(folder: Path, answers: Answers, tokens: int, overlap: bool) -> None:
    settings = {**SMALL, "max_batch_tokens_size": tokens, "max_running_requests": 2}
    play(TinyEngine(folder, **settings, enable_overlap=overlap), answers)


def test_prefixes_are_shared_by_what_they_show(folder: Path, answers: Answers) -> None:
    engine = TinyEngine(folder, **SMALL)

    def cached(number: int) -> int:
        request = add(engine, number)
        engine.run()
        answers.check(number, engine.outcomes[request, 0])
        return engine.outcomes[request, 0].cached

    assert PROMPTS[0].ids[5:17] == PROMPTS[1].ids[5:17]
    assert cached(0) == 0
    assert cached(1) == 4, "the text before the image"
    assert cached(0) == 20
    assert cached(1) == 20
    play(engine, answers)


def test_preempted_sequences_are_computed_again(
    folder: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed, rows_of = [], EmbeddingStore.rows_of

    def counted(self: EmbeddingStore, plan: StepPlan) -> StepEmbeddings | None:
        found = rows_of(self, plan)
        placed.append(0 if found is None else len(found.places))
        return found

    monkeypatch.setattr(EmbeddingStore, "rows_of", counted)
    engine = TinyEngine(folder, **{**SMALL, "kv_cache_mem_mb": 1}, reuse_cache=False)
    numbers = [*range(len(PROMPTS))] * 2
    requests = [add(engine, number, priority=5) for number in numbers]
    for _ in range(3):
        engine.step()
    urgent = [engine.add([3, 4, 5], max_tokens=70, ignore_eos=True) for _ in range(6)]
    engine.run()
    for number, request in zip(numbers, requests, strict=True):
        answers.check(number, engine.outcomes[request, 0])
    assert all(len(engine.outcomes[each, 0].tokens) == 70 for each in urgent)
    engine.assert_all_free()
    assert engine.engine.stats().preemptions > 0
    brought = [part.length for each in PROMPTS for part in each.parts if isinstance(part, Image)]
    assert sum(placed) > 2 * sum(brought), "embeddings of preempted sequences were placed again"


def test_sequences_of_one_prompt(folder: Path, answers: Answers) -> None:
    engine = TinyEngine(folder, **SMALL)
    request = add(engine, 2, n=3)
    engine.step()
    engine.engine.abort([(request, 0)])
    engine.run()
    for index in (1, 2):
        answers.check(2, engine.outcomes[request, index])
    assert not engine.engine._requests._embeddings._taken


def test_forks_keep_the_embeddings(folder: Path, answers: Answers) -> None:
    engine = TinyEngine(
        folder, **{**SMALL, "max_running_requests": 1}
    )  # the fork is computed again
    request = add(engine, 2)
    while len(engine.outcomes[request, 0].tokens) < 3:
        engine.step()
    engine.fork(request, [5])
    engine.engine.abort([(request, 0)])
    engine.run()
    answers.check(2, engine.outcomes[request, 5])
    engine.assert_all_free()
    assert not engine.engine._requests._embeddings._taken


def test_graphs(folder: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = capture_on_cpu(monkeypatch)
    engine = TinyEngine(folder, **SMALL, enable_graphs=True)
    play(engine, answers, times=2)
    assert sum(counts.values()) > COUNT
    assert max(size.longest for size in counts) > 1, "prompts too"


def test_drafts_that_the_device_finds(folder: Path, answers: Answers) -> None:
    engine = TinyEngine(
        folder, **SMALL, speculative="ngram", num_speculative_tokens=3, enable_overlap=True
    )
    requests = {number: add(engine, number, max_tokens=40) for number in (0, 2)}
    engine.run()
    for number, request in requests.items():
        answers.check(number, engine.outcomes[request, 0])
    stats = engine.engine.stats()
    rejected = stats.spec_decode_num_draft_tokens - stats.spec_decode_num_accepted_tokens
    assert stats.spec_decode_num_accepted_tokens > 0
    assert rejected > 0, "positions were corrected"


def test_a_model_of_text_is_fed_nothing_else(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    engine = TinyEngine(tmp_path, **SMALL)
    engine.add([3, 4, 5])
    engine.step()
    runner, scheduler = engine.built.worker.runner, engine.built.scheduler
    assert not (scheduler.config.mrope or scheduler.config.adapters)
    assert scheduler.batch.mrope_offsets.size == scheduler.batch.adapter_slots.size == 0
    assert not runner.model.inputs.needs.any and runner.inputs._embeddings is None
    engine.run()


@pytest.mark.usefixtures("forked_processes")
def test_ranks(folder: Path, answers: Answers) -> None:
    settings = {**SMALL, "max_batch_tokens_size": 7, "tensor_parallel_size": 2}
    engine = TinyEngine(folder, **settings, factory=FACTORY)
    try:
        play(engine, answers)
    finally:
        engine.close()
