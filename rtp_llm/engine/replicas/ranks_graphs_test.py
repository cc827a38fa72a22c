# SPDX-License-Identifier: Apache-2.0
"""Ranks that share experts replay graphs together: one rank's tokens, whatever each has."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.testing.engine.rank_runs import Play, Played, Replays, play
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.ranks import run_ranks

# With 8 tokens for each other rank, 3 sequences of a rank decode in the size of 4.
SETTINGS = {"expert_capacity": 8, "max_running_requests": 6, "num_threads": 1}
SIZES = [6, 1, 2, 4]
MOVING = {"redundant_expert": 2, "eplb_mode": "eplb", "eplb_update_time": 3}
PROMPTS = [random_prompt(length, length) for length in (3, 1, 5, 2, 4)]
LONG = random_prompt(40, 40)
MAX_TOKENS, TOP_K = 16, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)  # the ranks want the other core
    path = tmp_path_factory.mktemp("model")
    save_model(path, "qwen3_moe", seed=3)
    return path


@pytest.fixture(scope="module")
def alone(folder):
    """Tokens of one rank by prompt."""
    engine = TinyEngine(folder)
    prompts = [*PROMPTS, LONG]
    asked = [engine.add(prompt, max_tokens=MAX_TOKENS, ignore_eos=True) for prompt in prompts]
    engine.run()
    tokens = [engine.outcomes[request, 0].tokens for request in asked]
    return {tuple(prompt): each for prompt, each in zip(prompts, tokens, strict=True)}


def played(tmp_path, folder, rounds, replays=None, **settings):
    """What each rank did."""
    size = len(rounds[0])
    plays = Play(rounds, MAX_TOKENS, until_moved=settings.get("eplb_mode") == "eplb")
    marks = replays or [Replays() for _ in range(size)]
    settings = {**SETTINGS, **settings}
    return run_ranks(tmp_path, size, play, folder, settings, plays, marks, connect=False)


def check(found, rounds, alone):
    """One rank's tokens, and the same replays everywhere; these."""
    for rank, result in enumerate(found):
        assert isinstance(result, Played), result
        asked = [[alone[tuple(prompt)] for prompt in prompts[rank]] for prompts in rounds]
        asked += [asked[-1]] * (len(result.tokens) - len(asked))  # until experts have moved
        assert result.tokens == asked
        assert result.replays.made == found[0].replays.made
        assert result.replays.replayed == found[0].replays.replayed
    return found[0].replays.replayed


@pytest.mark.parametrize("overlap", [False, True])
def test_ranks_of_different_batches_replay_one_size_while_experts_move(
    tmp_path, folder, alone, overlap
):
    # 1 and 3 sequences; the prompts of a round are more tokens than a size has and run eagerly.
    rounds = [[PROMPTS[:1], PROMPTS[2:]], [PROMPTS[1:3], PROMPTS[:2]]]
    found = played(tmp_path, folder, rounds, enable_overlap=overlap, **MOVING)
    replayed = check(found, rounds, alone)
    assert all(result.moved and result.replays.made == SIZES for result in found)
    assert replayed[: MAX_TOKENS - 1] == [4] * (MAX_TOKENS - 1)
    assert replayed[MAX_TOKENS - 1 : 2 * MAX_TOKENS - 2] == [2] * (MAX_TOKENS - 1)


def test_three_ranks_of_which_some_have_no_work(tmp_path, folder, alone):
    rounds = [[[], PROMPTS[1:2], []], [PROMPTS[:2], [], PROMPTS[2:3]]]
    found = played(tmp_path, folder, rounds, redundant_expert=1)
    replayed = check(found, rounds, alone)
    # The prompt of one token is a step of the captured size, too.
    assert replayed[:MAX_TOKENS] == [1] * MAX_TOKENS
    assert replayed[MAX_TOKENS:] == [2] * (MAX_TOKENS - 1)


def test_rows_that_hold_no_token_are_no_load(tmp_path, folder, alone):
    rounds = [[PROMPTS[:3], []]]
    found = played(tmp_path, folder, rounds, eplb_mode="stats", eplb_update_time=10**6)
    assert check(found, rounds, alone) == [4] * (MAX_TOKENS - 1)
    # Of each token the choices; two tokens are of the step that the engine starts with.
    computed = sum(len(prompt) + MAX_TOKENS - 1 for prompt in PROMPTS[:3])
    assert found[0].counted == [TOP_K * (2 + computed)] * 3
    assert found[1].counted == [TOP_K * 2] * 3


def test_where_one_rank_has_more_than_any_size_all_run_eagerly(tmp_path, folder, alone):
    rounds = [[[LONG], PROMPTS[1:2]]]
    found = played(tmp_path, folder, rounds, max_batch_tokens_size=10)
    # Four parts of the long prompt; the other rank's first tokens come meanwhile, without a graph.
    assert check(found, rounds, alone) == [1] * (MAX_TOKENS - 1)


def test_without_memory_on_one_rank_a_size_is_left_out_on_all(tmp_path, folder, alone):
    rounds = [[PROMPTS[:2], PROMPTS[2:3]]]
    marks = [Replays(), Replays(no_room=2)]
    zero, one = played(tmp_path, folder, rounds, marks)
    assert zero.replays.made == [6, 1, 2] and one.replays.made == [6, 1]
    zero.replays.made.pop()
    # The largest stands in for it.
    assert check([zero, one], rounds, alone) == [6] * (MAX_TOKENS - 1)


def test_a_rank_that_dies_before_it_replays_is_reported_by_the_others(tmp_path, folder):
    marks = [Replays(), Replays(), Replays(last=5)]
    found = played(
        tmp_path, folder, [[PROMPTS[:1]] * 3], marks, redundant_expert=1, step_timeout=20
    )
    assert found[2] is None
    for rank, text in enumerate(found[:2]):
        assert text.startswith(f"RankLostError: rank {rank} of 3 lost contact to another rank")
