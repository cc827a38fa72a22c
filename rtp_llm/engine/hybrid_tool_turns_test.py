# SPDX-License-Identifier: Apache-2.0
"""Conversations with tools: a hybrid model with drafts and a prefix cache answers as without.

Each turn's prompt is the history so far: it goes on from states of earlier prompts, and from keys
and values of answers some of whose drafts were rejected.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rtp_llm.testing.engine.shared_prefixes import SIZES
from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.mtp_models import save_mtp_model

ROUNDS, CONVERSATIONS, WORDS = 10, 2, 64
DRAFTS = {"speculative": "mtp", "num_speculative_tokens": 3}
LIKELY = slice(40, 44)  # so few tokens are likely that random drafts are right now and then


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models")
    model, _ = save_mtp_model(path, "qwen3_5", vocab_size=WORDS, max_position_embeddings=1024)
    weight = model.lm_head.weight.detach()
    head = weight * 0.02
    head[LIKELY] = weight[LIKELY]
    file = path / "model.safetensors"
    save_file(load_file(file) | {"lm_head.weight": head}, file, {"format": "pt"})
    return path


def answered(folder: Path, **settings: Any) -> list[list[Outcome]]:
    """The conversations' answers, turn by turn: to a question, then to a tool's result."""
    sizes = {**SIZES, "max_seq_len": 1024, "kv_cache_mem_mb": 8, "max_batch_tokens_size": 32}
    engine = TinyEngine(folder, **sizes, **settings)
    chance = random.Random(7)

    def words(least: int, most: int) -> list[int]:
        return [chance.randrange(3, WORDS) for _ in range(chance.randrange(least, most))]

    system = words(41, 42)
    histories = [list(system) for _ in range(CONVERSATIONS)]
    turns = []
    for turn in range(2 * ROUNDS):
        request_ids = []
        for history in histories:
            history += words(4, 20) if turn % 2 else words(3, 9)
            most = chance.randrange(3, 17)
            request_ids.append(engine.add(history, max_tokens=most, ignore_eos=True))
        engine.run()
        turns.append([engine.outcomes[request, 0] for request in request_ids])
        for history, answer in zip(histories, turns[-1], strict=True):
            history += answer.tokens
    engine.assert_all_free()
    return turns


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[list[Outcome]]:
    return answered(folder, reuse_cache=False)


@pytest.mark.parametrize("overlap", [False, True])
def test_drafts_and_cached_states_change_no_answer(
    folder: Path, plain: list[list[Outcome]], overlap: bool
) -> None:
    turns = answered(folder, enable_overlap=overlap, **DRAFTS)
    for turn, (expected, found) in enumerate(zip(plain, turns, strict=True)):
        assert [each.tokens for each in found] == [each.tokens for each in expected], f"turn {turn}"
    for conversation in zip(*turns, strict=True):
        drafts = sum(answer.drafts for answer in conversation)
        accepted = sum(answer.accepted_drafts for answer in conversation)
        assert 0 < accepted < drafts
        cached = [answer.cached for answer in conversation]
        assert cached == sorted(cached)
        assert cached[-1] > 256
