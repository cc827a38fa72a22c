# SPDX-License-Identifier: Apache-2.0
"""Ranks on several GPUs give the tokens of one; skipped with fewer than two."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpus

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
pytest.importorskip("zmq")
GPU, COUNT = usable_gpus()
pytestmark = pytest.mark.skipif(COUNT < 2, reason=f"{COUNT} usable GPUs")
four = pytest.mark.skipif(COUNT < 4, reason=f"{COUNT} usable GPUs")
# Decoding and short prompts fit into captured sizes and messages of fixed size, others do not.
SETTINGS = {"expert_capacity": 16, "max_running_requests": 6, "kv_cache_mem_mb": 16}
MOVING = {"redundant_expert": 4, "eplb_mode": "eplb", "eplb_update_time": 3}
PROMPTS = [random_prompt(length, length) for length in (3, 1, 17, 40, 9, 100)]
MAX_TOKENS = 24


def rounds_for(size):
    """Prompts of each rank: all of them, all on the first, none on the first."""
    spread = [PROMPTS[rank::size] for rank in range(size)]
    none = [[] for _ in range(size - 1)]
    return [spread, [PROMPTS, *none], [*none, PROMPTS[:2]]]


def played(folder, tmp_path, size, scores=False, **settings):
    """What each rank did, and what one rank does alone: outcomes by prompt."""
    from rtp_llm.testing.engine.rank_runs import Play, ask, play
    from rtp_llm.testing.engine.tiny_engine import TinyEngine
    from rtp_llm.testing.ranks import run_ranks

    moves = settings.get("eplb_mode") == "eplb"
    plays = Play(rounds_for(size), MAX_TOKENS, until_moved=moves, scores=scores)
    given = {**SETTINGS, **settings, "device_type": GPU}
    found = run_ranks(tmp_path, size, play, folder, given, plays, [], connect=False)
    for result in found:
        assert not isinstance(result, str), result
        assert result is not None and result.moved == moves
    own = ("expert_capacity", "redundant_expert", "eplb_mode", "eplb_update_time")
    alone = TinyEngine(folder, **{name: given[name] for name in given if name not in own})
    asked = ask(alone, PROMPTS, plays)
    alone.run()
    outcomes = [alone.outcomes[request, 0] for request in asked]
    return found, {tuple(p): o for p, o in zip(PROMPTS, outcomes, strict=True)}


def check(found, alone, size):
    rounds = rounds_for(size)
    for rank, result in enumerate(found):
        for number, tokens in enumerate(result.tokens):
            prompts = rounds[min(number, len(rounds) - 1)][rank]
            assert tokens == [alone[tuple(prompt)].tokens for prompt in prompts]


CASES = {
    "captured": {},
    "moving": MOVING,
    "moving eager": {**MOVING, "enable_graphs": False},
    "exact": {"expert_capacity": 0},
    "redundant, in lockstep": {"redundant_expert": 4, "enable_overlap": False},
}


@pytest.mark.parametrize(
    ("kind", "case", "size"),
    [
        *(("qwen3_moe", case, 2) for case in CASES),
        ("deepseek_v3", "moving", 2),
        pytest.param("qwen3_moe", "captured", 4, marks=four),
        pytest.param("deepseek_v3", "moving", 4, marks=four),
    ],
)
def test_ranks_give_the_tokens_of_one(kind, case, size, tmp_path):
    save_model(tmp_path, kind, seed=7)
    found, alone = played(tmp_path, tmp_path, size, **CASES[case])
    check(found, alone, size)
    captured = case not in ("moving eager", "exact")
    # 6, 1, 2 and 4 sequences that decode; prompts of 16 tokens alone and among others.
    assert [result.sizes for result in found] == [6 if captured else 0] * size


@pytest.mark.parametrize("graphs", [False, True])
def test_prompts_score_as_on_one_rank_in_bfloat16(tmp_path, graphs):
    """Experts in Triton; sums of ranks are rounded once more."""
    save_model(tmp_path, "qwen3_moe", seed=7, head_dim=64)
    settings = {"dtype": "bfloat16", "enable_graphs": graphs, "reuse_cache": False}
    from rtp_llm.testing.engine.rank_runs import scores_of

    found, alone = played(tmp_path, tmp_path, 2, scores=True, **settings)
    exact, ours = [], []
    for rank, result in enumerate(found):
        for prompts, scores in zip(rounds_for(2), result.scores, strict=True):
            for prompt, each in zip(prompts[rank], scores, strict=True):
                exact += scores_of(alone[tuple(prompt)])
                ours += each
    exact, ours = torch.tensor(exact), torch.tensor(ours)
    assert len(exact) == len(ours) > 300
    assert (exact - ours).abs().mean() < 0.05 * exact.std()


def test_processes_serve_and_end_with_the_one_that_is_killed(tmp_path):
    from rtp_llm.config.settings import Settings
    from rtp_llm.engine.messages import EngineDeadError
    from rtp_llm.engine.replicas.rank_engines import RankEngines
    from rtp_llm.request.sampling_params import SamplingParams
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    save_model(tmp_path, "qwen3_moe", seed=7)
    common = {"kv_cache_mem_mb": 16, "dtype": "float32", "device_type": GPU}
    alone = TinyEngine(tmp_path, **common)
    expected = alone.tokens(PROMPTS[3], max_tokens=MAX_TOKENS, ignore_eos=True)
    engines = RankEngines(
        Settings(model=str(tmp_path), data_parallel_size=2, step_timeout=60, **common)
    )
    try:
        for number in (1, 2):
            params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
            engines.add(asked(number, params))
        assert tokens_until_the_end(engines) == {(1, 0): expected, (2, 0): expected}
        params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
        for number in (3, 4):
            engines.add(asked(number, params))
        engines.step()
        os.kill(engines._links[1].process.pid, signal.SIGKILL)
        # The other waits on its GPU for messages that never come.
        with pytest.raises(EngineDeadError, match=r"rank 1: .*ended by signal SIGKILL"):
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                engines.step()
    finally:
        engines.close()


def asked(number, params):
    from rtp_llm.engine.messages import AddRequest

    return AddRequest(request_id=number, prompt_token_ids=list(PROMPTS[3]), params=params)


def tokens_until_the_end(engines):
    from rtp_llm.engine.deltas import decode_step

    found = {}
    while engines._open:
        for output in engines.step():
            for request_id, delta in decode_step(output):
                found.setdefault((request_id, delta.index), []).extend(delta.token_ids)
    return found
