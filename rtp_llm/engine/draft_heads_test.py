# SPDX-License-Identifier: Apache-2.0
"""Engines that draft by a head, or by another model: the same answers, and the right drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.messages import INDEX_BITS, EngineStartError
from rtp_llm.models.refusals import UnsupportedModelError
from rtp_llm.testing.engine.drafting_models import (
    DRAFT_MODELS,
    HEADS,
    TIGHT,
    WORDS,
    Model,
    accepted,
    compare,
    run,
    save_drafting_model,
)
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.draft_models import DraftModelOracle
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.heads.logits_processor import ProcessorRows
from rtp_llm.worker.inputs.graph_sizes import GraphSize


@pytest.fixture(scope="module", params=HEADS + DRAFT_MODELS)
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    made = save_drafting_model(tmp_path_factory.mktemp("model"), request.param)
    with each_token_alone():  # so that verifying in one step rounds as decoding does
        made.plain = run(made.folder)
        yield made


@pytest.mark.parametrize(("drafts", "overlap"), [(1, True), (3, False), (7, True)])
def test_answers_are_the_same(model: Model, drafts: int, overlap: bool) -> None:
    settings = {**model.settings, "num_speculative_tokens": drafts, "enable_overlap": overlap}
    engine = run(model.folder, **settings)
    compare(engine, model.plain)
    assert accepted(engine) > 10


def test_preemption_and_short_chunks_change_nothing(model: Model) -> None:
    engine = run(model.folder, **model.settings, **TIGHT, kv_cache_mem_mb=1, enable_overlap=True)
    compare(engine, model.plain)
    fits = model.kind == "deepseek_v3"  # its latents are small
    assert fits or engine.engine.stats().preemptions > 0


def test_arrivals_and_aborts_in_flight(model: Model) -> None:
    def play(engine: TinyEngine) -> None:
        for number in range(24):
            prompt = random_prompt(4 + number, number, WORDS)
            engine.add(prompt, ignore_eos=True, max_tokens=20, temperature=1.0)

    plain = run(model.folder, play)
    engine = TinyEngine(
        model.folder, seed=3, **model.settings, enable_overlap=True, max_running_requests=6
    )
    for number in range(24):
        prompt = random_prompt(4 + number, number, WORDS)
        engine.add(prompt, ignore_eos=True, max_tokens=20, temperature=1.0)
        engine.step()
        if number % 5 == 4:
            engine.engine.abort([(number, 0)])
    engine.run()
    engine.assert_all_free()
    for key, outcome in engine.outcomes.items():
        whole = plain.outcomes[key].tokens
        assert outcome.tokens == (whole if outcome.finish else whole[: len(outcome.tokens)])


class Favourite:
    """A logits processor whose favourite depends on the whole history."""

    def __call__(self, logits: Any, rows: ProcessorRows) -> None:
        for index in range(len(rows.rows)):
            logits[index, int(rows.history(index).sum()) % WORDS] += 3.0


@pytest.mark.parametrize("overlap", [False, True])
def test_logits_processors_see_drafts(model: Model, overlap: bool) -> None:
    def play(engine: TinyEngine) -> None:
        for number in range(4):
            processors = [Favourite()] if number % 2 else []
            prompt = random_prompt(9, number, WORDS)
            engine.add(prompt, processors=processors, max_tokens=20, ignore_eos=True)

    plain = run(model.folder, play)
    engine = run(model.folder, play, **model.settings, enable_overlap=overlap)
    compare(engine, plain)
    assert accepted(engine) > 0


class Watcher:
    """Holds the drafts of every step against those of the oracle."""

    def __init__(self, engine: TinyEngine, model: Model, prompts: dict[int, list[int]]) -> None:
        self.checked = self.close = 0
        self._engine, self._model, self._prompts = engine, model, prompts
        worker = engine.built.worker
        assert worker.drafter is not None and worker.runner.sampled is not None
        self._forward, self._sampled = worker.runner.forward, worker.runner.sampled
        worker.runner.forward = self.forward  # type: ignore[method-assign]

    def forward(self, step: Any) -> Any:
        hidden, plan = self._forward(step), step.plan
        for first, end in zip(plan.row_cu[:-1].tolist(), plan.row_cu[1:].tolist(), strict=True):
            if end - first > 1:
                self._check(plan, first, end - first - 1)
        return hidden

    def _check(self, plan: Any, first: int, count: int) -> None:
        request, index = divmod(int(plan.row_ids[first]), 1 << INDEX_BITS)
        said = self._engine.outcomes[request, index].tokens[: int(plan.row_steps[first])]
        if len(said) < int(plan.row_steps[first]):
            return  # the last token is pending
        expected, gap = self._model.drafts(self._prompts[request] + said, count)
        if gap < 1e-3:
            self.close += 1
            return
        assert self._sampled.drafts[first : first + count].tolist() == expected
        self.checked += 1


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("settings", [{}, {"max_batch_tokens_size": 16, "seq_size_per_block": 4}])
def test_drafts_are_those_of_the_layer(
    model: Model, settings: dict[str, Any], graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step, with keys and values as a draft of the whole sequence would compute them."""
    extended: Counter[GraphSize] = Counter()
    replayed = capture_on_cpu(monkeypatch, extended) if graphs else Counter[GraphSize]()
    engine = TinyEngine(
        model.folder, **model.settings, **settings, max_running_requests=8, reuse_cache=False
    )
    for _ in range(8 * graphs):  # decode and verify steps, not prompts
        engine.engine.work_idle()
    prompts = {n + 1: random_prompt(2 + 9 * n, n, WORDS) for n in range(5)}
    watcher = Watcher(engine, model, prompts)
    for number, prompt in enumerate(prompts.values()):
        engine.add(prompt, max_tokens=22, ignore_eos=True, n=1 + number % 2)
        engine.step()
    engine.run()
    assert watcher.checked > 30 > watcher.close
    drafting = sum(count for size, count in replayed.items() if size.is_for_rows(4))
    assert (drafting > 1) is graphs
    assert (extended.total() > 4) is (graphs and not isinstance(model.oracle, DraftModelOracle))


def test_a_model_without_the_layer_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    with pytest.raises(UnsupportedModelError, match="--speculative"):
        TinyEngine(tmp_path, speculative="mtp")


def test_a_head_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    with pytest.raises(EngineStartError, match=r"^speculative_model: only"):
        TinyEngine(tmp_path, speculative_model=str(tmp_path))


def test_states_go_back_seven_tokens(tmp_path: Path) -> None:
    save_mtp_model(tmp_path, "qwen3_5")
    with pytest.raises(EngineStartError, match="--num-speculative-tokens 7"):
        TinyEngine(tmp_path, speculative="mtp", num_speculative_tokens=8)
