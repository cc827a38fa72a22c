# SPDX-License-Identifier: Apache-2.0
"""What works together with tensor-parallel ranks: the tokens are those of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.ranks import tensor_ranks
from rtp_llm.request.constraints import Thinking
from rtp_llm.testing.engine.drafting_models import (
    WORDS,
    accepted,
    everything,
    save_drafting_model,
)
from rtp_llm.testing.engine.grammars import VOCABULARY, cases, save_spelling_model, text_of
from rtp_llm.testing.engine.rank_capturing import (
    IN_A_RANK,
    capturing_worker,
    short_of_memory_worker,
)
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tensor_ranks import SMALL, check_alike, ranks
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt

pytestmark = pytest.mark.usefixtures("forked_processes")

# The drafting method, the kind of the model and of its draft model; and additional settings.
CASES: dict[str, dict[str, Any]] = {
    "plain qwen3_moe": {},
    "plain deepseek_v3": {},
    "ngram qwen3": {"enable_overlap": True},
    "suffix llama": {},
    "mtp qwen3_5": {"enable_overlap": True},
    "mtp deepseek_v3": {},
    "eagle3 llama": {"enable_overlap": True},
    "draft-model llama llama": {"enable_overlap": True},
    # What is sampled depends on the drafts there are, and these on how the cache suffices.
    "draft-model qwen3 llama": {"draft_sample_method": "probabilistic", "kv_cache_mem_mb": 8},
}


def run(engine: TinyEngine) -> TinyEngine:
    everything(engine)
    engine.run()
    engine.assert_all_free()
    return engine


@pytest.mark.parametrize("named", CASES)
def test_kinds_of_models_and_drafts(named: str, tmp_path: Path) -> None:
    model = save_drafting_model(tmp_path, named)
    drafts = not named.startswith("plain")
    settings = {**(model.settings if drafts else {}), **CASES[named]}
    one = run(TinyEngine(model.folder, **{**SMALL, **settings}))
    with ranks(model.folder, **settings) as engine:
        run(engine)
        check_alike(engine.outcomes, one.outcomes)
    assert bool(accepted(engine)) == drafts


def test_four_ranks_with_two_kv_heads(tmp_path: Path) -> None:
    model = save_drafting_model(tmp_path, "plain llama")
    one = run(TinyEngine(model.folder, **SMALL))
    with ranks(model.folder, 4) as engine:
        check_alike(run(engine).outcomes, one.outcomes)


@pytest.mark.parametrize("quantization", ["int8", "w8a8_int8"])
def test_int8(quantization: str, tmp_path: Path) -> None:
    """Each rank rounds its own parts: the numbers are near those of one rank."""
    model = save_drafting_model(tmp_path, "plain llama")
    found = []
    options: dict[str, Any] = {"max_tokens": 1, "logprobs": WORDS, "ignore_eos": True}

    def play(engine: TinyEngine) -> None:
        request = engine.add(random_prompt(30, 1, WORDS), **options)
        engine.run()
        (entry,) = engine.outcomes[request, 0].logprobs
        found.append(dict(entry.top))

    play(TinyEngine(model.folder, quantization=quantization, **SMALL))
    with ranks(model.folder, quantization=quantization) as engine:
        play(engine)
    assert found[0] == pytest.approx(found[1], abs=0.1 if quantization == "int8" else 0.5)


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_grammars_and_budgets(overlap: bool, tmp_path: Path) -> None:
    save_spelling_model(tmp_path)

    def play(engine: TinyEngine) -> dict[int, Any]:
        wanted = {}
        for number, case in enumerate(cases(6)):
            prompt = random_prompt(4 + number, number, VOCABULARY - 40)
            options: dict[str, Any] = {"temperature": 1.0, "seed": number, "max_tokens": 120}
            wanted[engine.add(prompt, grammar=case.grammar, **options)] = case
            engine.add(prompt, **options)
            engine.step()
        budget = Thinking(end_ids=(8,), budget=5)
        engine.add(random_prompt(5, 3, VOCABULARY - 40), thinking=budget, max_tokens=30)
        engine.run()
        return wanted

    speculation: dict[str, Any] = {"speculative": "grammar", "enable_overlap": overlap}
    one = TinyEngine(tmp_path, **{**SMALL, **speculation})
    play(one)
    with ranks(tmp_path, **speculation) as engine:
        wanted = play(engine)
        check_alike(engine.outcomes, one.outcomes)
    ended = [key for key in wanted if engine.outcomes[key, 0].finish == "stop"]
    assert ended
    for key in ended:
        assert wanted[key].accepts(text_of(tmp_path, engine.outcomes[key, 0].tokens))


# -- graphs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", [capturing_worker, short_of_memory_worker])
def test_graphs(factory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_drafting_model(tmp_path, "plain llama")
    one = run(TinyEngine(model.folder, **SMALL, enable_overlap=True))
    counts = capture_on_cpu(monkeypatch)
    monkeypatch.setattr(tensor_ranks, "RANK_FACTORY", IN_A_RANK.format(factory.__name__))
    with ranks(model.folder, enable_graphs=True, enable_overlap=True) as engine:
        while engine.engine.has_idle_work:
            engine.engine.work_idle()
        run(engine)
        check_alike(engine.outcomes, one.outcomes)
        sizes = engine.built.worker.runner._graphs._captured  # type: ignore[union-attr]
        assert len(sizes) == 1 if factory is short_of_memory_worker else len(sizes) > 2
    assert sum(counts.values()) > 20
