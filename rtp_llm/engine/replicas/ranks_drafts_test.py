# SPDX-License-Identifier: Apache-2.0
"""Ranks that share experts and draft: one rank's tokens, also while some have nothing to do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.testing.engine.drafting_models import WORDS, save_drafting_model
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.rank_runs import Replays, capture_on_cpu
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt
from rtp_llm.testing.ranks import run_ranks
from rtp_llm.worker.heads.logits_processor import ProcessorRows

# Of the model, of what drafts, of neither: experts.
KINDS = (
    "mtp qwen3_5_moe",
    "mtp deepseek_v3",
    "eagle3 qwen3_moe",
    "draft-model qwen3_moe llama",
    "ngram qwen3_moe",
)
# By round and rank, the numbers of requests: one rank has several, the other fewer or none.
ROUNDS = (((0, 1, 2), (3,)), ((4,), ()), ((5, 6), (7, 8, 9)))
SETTINGS: dict[str, Any] = {"max_running_requests": 4, "max_batch_tokens_size": 48, "seed": 3}


class Favourite:
    """A logits processor: sampling waits for the tokens of the step before."""

    def __call__(self, logits: Any, rows: ProcessorRows) -> None:
        for index in range(len(rows.rows)):
            logits[index, int(rows.history(index).sum()) % WORDS] += 3.0


def add(engine: TinyEngine, number: int) -> int:
    """Request `number`, which is the same everywhere."""
    option_sets: list[dict[str, Any]] = [{}, {"temperature": 0.8}, {"repetition_penalty": 1.2}, {}]
    return engine.add(
        random_prompt(4 + 7 * number, number, WORDS),
        processors=[Favourite()] if number % 4 == 3 else [],
        max_tokens=14 + number,
        ignore_eos=True,
        **{"seed": number, **option_sets[number % 4]},
    )


@dataclass
class Found:
    """Of a rank: tokens by request, drafts that were right, and what it replayed."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    accepted: int = 0
    drafts: list[int] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)


def draft_together(world: None, folder: Path, settings: dict[str, Any], graphs: bool) -> Found:
    """A rank's part of all rounds."""
    rank, size, replays = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Replays()
    if graphs:
        capture_on_cpu(replays)
    with each_token_alone():
        engine = TinyEngine(folder, data_parallel_size=size, **settings)
        found, ranks = Found(replayed=replays.replayed), engine.built.step_group
        assert ranks is not None
        while graphs and engine.engine.has_work:  # until all sizes are captured
            engine.step()
        for number, requests in enumerate(ROUNDS, 1):
            request_ids = {each: add(engine, each) for each in requests[rank]}
            ranks.wake(number)
            engine.run()
            engine.assert_all_free()
            found.tokens |= {
                each: engine.outcomes[request_ids[each], 0].tokens for each in request_ids
            }
        found.accepted = engine.engine.stats().spec_decode_num_accepted_tokens
        found.drafts = [outcome.drafts for outcome in engine.outcomes.values()]
        ranks.leave()
    return found


def run(folder: Path, kind: str, graphs: bool = False, **more: Any) -> tuple[Sequence[Found], Any]:
    """What two ranks that draft found, and the tokens of one rank that does not."""
    torch.set_num_threads(1)  # the ranks want the other core
    model = save_drafting_model(folder, kind)
    with each_token_alone():
        alone = TinyEngine(model.folder, **SETTINGS)
        request_ids = {number: add(alone, number) for number in range(10)}
        alone.run()
    settings = {**SETTINGS, **model.settings, **more}
    ranks = run_ranks(folder, 2, draft_together, model.folder, settings, graphs, connect=False)
    return ranks, {number: alone.outcomes[request_ids[number], 0].tokens for number in request_ids}


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_that_draft_give_the_tokens_of_one(tmp_path: Path, kind: str) -> None:
    ranks, expected = run(tmp_path, kind, enable_overlap=kind != "ngram qwen3_moe")
    for found in ranks:
        assert isinstance(found, Found), found
        assert found.accepted > 0
    assert ranks[0].tokens | ranks[1].tokens == expected


def test_graphs_of_steps_that_verify(tmp_path: Path) -> None:
    """Both replay one size, whoever verifies drafts in it; experts move meanwhile."""
    moving = {"redundant_expert": 2, "eplb_mode": "eplb", "eplb_update_time": 3}
    ranks, expected = run(tmp_path, "mtp qwen3_5_moe", True, expert_capacity=16, **moving)
    for found in ranks:
        assert isinstance(found, Found), found
        assert found.accepted > 0
        assert found.replayed == ranks[0].replayed
    assert ranks[0].tokens | ranks[1].tokens == expected
    assert max(ranks[0].replayed) > 4  # not only steps without drafts
