# SPDX-License-Identifier: Apache-2.0
"""Workers of several tensor-parallel ranks: one engine's tokens, from any size to any other."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.disagg import rank_parts
from rtp_llm.disagg.rank_worker import make_worker
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.testing.disagg.prefill_process import prefill_process
from rtp_llm.testing.disagg.workers import (
    SIZES,
    Pair,
    Worker,
    decode_worker,
    prompt,
    step_until,
    tokens_of,
)
from rtp_llm.testing.engine.drafting_models import WORDS, save_drafting_model
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.worker import Worker as RankWorker

pytestmark = pytest.mark.usefixtures("forked_processes")

LENGTHS = (1, 4, 23, 24, 25, 61)
TWO: dict[str, Any] = {"tensor_parallel_size": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    save_model(made, "qwen3")
    return made


@pytest.fixture(scope="module")
def fused(folder: Path) -> TinyEngine:
    return TinyEngine(folder, **SIZES)


def staged_worker(*arguments: Any) -> RankWorker:
    """A rank whose blocks go through memory of the host, as on a GPU."""
    pytest.MonkeyPatch().setattr(rank_parts, "reads_in_place", lambda *_: False)
    return make_worker(*arguments)


@pytest.mark.parametrize("several", ["prefill", "decode"])
def test_one_rank_and_two_by_way_of_staging_memory(
    several: str, folder: Path, fused: TinyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_parts, "reads_in_place", lambda *_: False)
    factory = f"{__name__}:staged_worker"
    pair = Pair(folder, **SIZES, **{several: {**TWO, "factory": factory}})
    for length in LENGTHS:
        tokens = prompt(length, seed=length)
        assert pair.tokens(tokens) == fused.tokens(tokens)
    assert pair.decode.transfers()["delivered"] == len(LENGTHS)
    requests = [pair.decode.add(prompt(60, seed=seed)) for seed in range(20, 23)]
    for _ in range(3):
        pair.step()
    pair.decode.engine.abort([(request, 0) for request in requests])
    pair.settle()
    pair.close()


def test_two_ranks_and_four(folder: Path, fused: TinyEngine) -> None:
    """Four have two KV heads: two of them the same one."""
    with (
        prefill_process(folder, **SIZES, **TWO) as prefill,
        decode_worker(folder, prefill.address, **SIZES, tensor_parallel_size=4) as decode,
    ):
        for length in LENGTHS:
            tokens = prompt(length, seed=length)
            assert tokens_of(decode, tokens) == fused.tokens(tokens)
        assert decode.transfers()["delivered"] == len(LENGTHS)
        step_until(decode, decode.is_idle)


def test_prefill_ranks_that_are_killed_in_mid_transfer(folder: Path, fused: TinyEngine) -> None:
    """Of many small steps some blocks have come: the prompt is computed here."""
    settings: dict[str, Any] = {**SIZES, **TWO, "max_batch_tokens_size": 8}
    tokens = prompt(200, seed=1)
    with (
        prefill_process(folder, **settings) as prefill,
        decode_worker(folder, prefill.address, **settings) as decode,
    ):
        connector: Any = decode.connector
        request = decode.add(tokens)
        client = connector._own.client._clients["tcp"]
        step_until(decode, lambda: client.stats()["bytes"] > 0)
        os.kill(prefill.process.pid, signal.SIGKILL)  # which ends its ranks
        step_until(decode, lambda: bool(decode.outcomes[request].finish))
        assert decode.outcomes[request].tokens == fused.tokens(tokens)
        assert decode.failures() == {"peer_lost": 1}
        assert decode.transfers()["fallbacks"] == 1
        step_until(decode, decode.is_idle)
        tokens = prompt(30, seed=2)
        assert tokens_of(decode, tokens) == fused.tokens(tokens)


@pytest.mark.parametrize(
    "named", ["plain deepseek_v3", "eagle3 llama", "draft-model mistral qwen3"]
)
def test_kinds_of_caches(named: str, tmp_path: Path) -> None:
    """Latents that every rank has, heads of what drafts, and a draft model's, which are whole."""
    model = save_drafting_model(tmp_path, named)
    settings = {**SIZES, **(model.settings if "plain" not in named else {})}
    settings["speculative_adaptive"] = False
    pair = Pair(model.folder, **settings, decode=TWO)
    fused = TinyEngine(model.folder, **settings)
    for length in LENGTHS:
        tokens = random_prompt(length, length, WORDS)
        assert pair.tokens(tokens) == fused.tokens(tokens)
    assert pair.decode.transfers()["delivered"] == len(LENGTHS)
    pair.settle()
    pair.close()


def test_states_come_from_as_many_ranks_alone(tmp_path: Path) -> None:
    model = save_drafting_model(tmp_path, "mtp qwen3_5")
    settings: dict[str, Any] = {**SIZES, **model.settings, "speculative_adaptive": False}
    fused = TinyEngine(model.folder, **settings)
    with prefill_process(model.folder, **settings, **TWO) as prefill:
        with pytest.raises(EngineStartError, match="tp is 2 there and 1 here: start both with"):
            Worker(model.folder, role="decode", prefill_workers=prefill.address, **settings)
        with decode_worker(model.folder, prefill.address, **settings, **TWO) as decode:
            for length in LENGTHS:
                tokens = random_prompt(length, length, WORDS)
                assert tokens_of(decode, tokens) == fused.tokens(tokens)
            assert decode.transfers()["delivered"] == len(LENGTHS)
