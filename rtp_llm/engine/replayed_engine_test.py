# SPDX-License-Identifier: Apache-2.0
"""Engines whose steps are all replayed in the sizes of graphs give what eager ones give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.messages import INDEX_BITS
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.scripted_proposer import ScriptedProposer, ragged, right
from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.eagle3_models import save_eagle3_head
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.inputs.graph_sizes import GraphSize

WORDS = 199
RUNNING: dict[str, Any] = {
    "max_running_requests": 6,
    "max_batch_tokens_size": 32,
    "seq_size_per_block": 4,
}
Outcomes = dict[tuple[int, int], Outcome]


def play(engine: TinyEngine, words: int = WORDS) -> Outcomes:
    """Prompts alone and among decoding sequences, twice, the second time after cached prefixes."""
    while engine.engine.has_idle_work:  # all sizes are captured before the first request
        engine.engine.work_idle()
    for number in range(12):
        prompt = random_prompt(4 + 5 * (number % 6), seed=number % 6, vocabulary=words)
        engine.add(prompt, max_tokens=14, ignore_eos=True, temperature=(number % 2) * 0.8, seed=7)
        if number % 4 == 0:
            engine.step()
    engine.run()
    engine.assert_all_free()
    for outcome in engine.outcomes.values():
        outcome.cached = 0  # depends on when a step ran
    return engine.outcomes


def kinds(counts: Counter[GraphSize], drafts: int) -> dict[str, int]:
    """How often steps of each kind were replayed."""
    verify = {
        GraphSize(size.sequences * (1 + drafts), size.sequences, 1 + drafts) for size in counts
    }
    found: Counter[str] = Counter()
    for size, count in counts.items():
        kind = "decode" if size.longest == 1 else "verify" if size in verify else "prompt"
        found[kind] += count
    return found


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    with each_token_alone():  # so that steps of any size round alike
        yield


@pytest.mark.parametrize("kind", ["mistral", "deepseek_v3", "gemma4", "qwen3_next"])
def test_plain_engines(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    save_model(tmp_path, kind, **({"sliding_window": 9} if kind == "mistral" else {}))
    eager = play(TinyEngine(tmp_path, seed=3, **RUNNING))
    counts = capture_on_cpu(monkeypatch)
    assert play(TinyEngine(tmp_path, seed=3, **RUNNING)) == eager
    replayed = kinds(counts, 0)
    assert replayed["decode"] > 8
    assert replayed["prompt"] > 4


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("distort", [right, ragged])
def test_engines_that_verify_drafts(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distort: Any, overlap: bool
) -> None:
    save_model(tmp_path, "llama")
    eager = play(TinyEngine(tmp_path, seed=3, **RUNNING))
    script = {
        request << INDEX_BITS | index: outcome.tokens for (request, index), outcome in eager.items()
    }
    proposer = ScriptedProposer(script, distort, max_draft_tokens=3)
    counts = capture_on_cpu(monkeypatch)
    engine = TinyEngine(tmp_path, seed=3, proposer=proposer, enable_overlap=overlap, **RUNNING)
    assert play(engine) == eager
    assert kinds(counts, 3)["verify"] > 4
    assert proposer.accepted > 30


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("method", ["mtp", "eagle3"])
def test_engines_that_draft_on_the_device(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, overlap: bool
) -> None:
    drafts: dict[str, Any] = {"speculative": method, "num_speculative_tokens": 3}
    if method == "mtp":
        save_mtp_model(tmp_path, "qwen3_5", vocab_size=11)
    else:  # whose head reads what several layers leave at one place
        target, head = save_model(tmp_path, "llama", vocab_size=11), tmp_path / "head"
        head.mkdir()
        save_eagle3_head(head, target, draft_vocab_size=9)
        drafts["speculative_model"] = str(head)
    eager = play(TinyEngine(tmp_path, seed=3, **RUNNING), words=11)
    extended: Counter[GraphSize] = Counter()
    counts = capture_on_cpu(monkeypatch, extended)
    engine = TinyEngine(tmp_path, seed=3, enable_overlap=overlap, **drafts, **RUNNING)
    assert play(engine, words=11) == eager
    assert kinds(counts, 3)["verify"] > 8
    assert all(
        extended[size] == count * (size.tokens == size.sequences * size.longest)
        for size, count in counts.items()
    )
    assert sum(outcome.accepted_drafts for outcome in engine.outcomes.values()) > 0
