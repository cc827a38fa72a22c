# SPDX-License-Identifier: Apache-2.0
"""Engines whose layers are divided into stages give what one of one rank gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.ranks import tensor_ranks
from rtp_llm.testing.engine.drafting_models import everything, save_drafting_model
from rtp_llm.testing.engine.grammars import VOCABULARY, cases, save_spelling_model, text_of
from rtp_llm.testing.engine.rank_capturing import (
    IN_A_RANK,
    capturing_worker,
    short_of_memory_worker,
)
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tensor_ranks import SMALL, check_alike, play, ranks
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

pytestmark = pytest.mark.usefixtures("forked_processes")

# Models of three layers, some of four, their stages, the ranks of each, and other settings.
CASES: list[tuple[str, int, int, dict[str, Any]]] = [
    ("llama", 2, 1, {}),
    ("llama", 2, 1, {"quantization": "int8"}),
    ("qwen3", 3, 1, {}),
    ("qwen3", 2, 2, {}),
    ("qwen3_moe", 2, 1, {}),
    ("gemma4_experts", 2, 1, {}),
    ("deepseek_v3", 2, 2, {}),
    ("qwen3_next", 4, 1, {}),  # one layer each, of which one has tokens in its cache
]


@pytest.mark.parametrize(("kind", "stages", "size", "settings"), CASES)
def test_the_same_outcomes(
    kind: str, stages: int, size: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    save_model(tmp_path, kind, tie_word_embeddings=kind == "qwen3")
    one = TinyEngine(tmp_path, **SMALL, **settings)
    expected = play(one)
    with ranks(tmp_path, size, pipeline_parallel_size=stages, **settings) as engine:
        check_alike(play(engine), expected)
        if kind in ("llama", "qwen3"):
            assert engine.engine.stats().preemptions > 0
        assert any(outcome.cached for outcome in engine.outcomes.values())


def test_every_stage_has_a_batch(tmp_path: Path) -> None:
    """Chunks of one prompt follow each other, and sequences that decode are divided."""
    save_model(tmp_path, "llama")
    with ranks(tmp_path, 1, pipeline_parallel_size=3) as engine:
        scheduler, flown = engine.built.scheduler, []
        engine.add(random_prompt(150), max_tokens=6)
        for _ in range(5):
            engine.add(random_prompt(9), max_tokens=6, ignore_eos=True)
        while engine.engine.has_work:
            engine.step()
            flown.append(list(scheduler.uncommitted))
        # A step that was read is not in flight any more, and the next is not submitted yet.
        assert flown[0] == [0, 0], "two more chunks of the prompt"
        assert [2, 2] in flown, "six sequences that decode"


def test_grammars(tmp_path: Path) -> None:
    save_spelling_model(tmp_path)

    def write(engine: TinyEngine) -> dict[int, Any]:
        wanted = {}
        for number, case in enumerate(cases(6)):
            prompt = random_prompt(4 + number, number, VOCABULARY - 40)
            options: dict[str, Any] = {"temperature": 1.0, "seed": number, "max_tokens": 120}
            wanted[engine.add(prompt, grammar=case.grammar, **options)] = case
            engine.step()
        engine.run()
        return wanted

    one = TinyEngine(tmp_path, **SMALL)
    write(one)
    with ranks(tmp_path, 1, pipeline_parallel_size=2) as engine:
        wanted = write(engine)
        check_alike(engine.outcomes, one.outcomes)
    ended = [key for key in wanted if engine.outcomes[key, 0].finish == "stop"]
    assert ended
    for key in ended:
        assert wanted[key].accepts(text_of(tmp_path, engine.outcomes[key, 0].tokens))


@pytest.mark.parametrize("factory", [capturing_worker, short_of_memory_worker])
@pytest.mark.parametrize(("stages", "size"), [(2, 1), (2, 2)])
def test_graphs(
    stages: int, size: int, factory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage has its own, of the same sizes; what one has no memory for is dropped on all."""
    model = save_drafting_model(tmp_path, "plain llama")

    def run(engine: TinyEngine) -> TinyEngine:
        everything(engine)
        engine.run()
        engine.assert_all_free()
        return engine

    one = run(TinyEngine(model.folder, **SMALL))
    counts = capture_on_cpu(monkeypatch)
    monkeypatch.setattr(tensor_ranks, "RANK_FACTORY", IN_A_RANK.format(factory.__name__))
    settings: dict[str, Any] = {"pipeline_parallel_size": stages, "enable_graphs": True}
    with ranks(model.folder, size, **settings) as engine:
        while engine.engine.has_idle_work:
            engine.engine.work_idle()
        check_alike(run(engine).outcomes, one.outcomes)
        sizes = engine.built.worker.runner._graphs._captured  # type: ignore[union-attr]
        assert len(sizes) == 1 if factory is short_of_memory_worker else len(sizes) > 2
    assert sum(counts.values()) > 20
