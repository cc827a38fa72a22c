# SPDX-License-Identifier: Apache-2.0
"""Ranks with parts of the logits take the token that one with all of them takes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.distributed.world import World
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.ranks import run_ranks
from rtp_llm.worker.heads.logit_shards import LogitShards
from rtp_llm.worker.heads.slot_settings import RowSettings, SlotSettings

VOCABULARY = 301
WORST = [-torch.inf, torch.inf, torch.nan]


def rows() -> Tensor:
    """Random ones, ties, extremes, and rows with something wrong on either rank or on both."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(40, VOCABULARY, generator=generator)
    logits[8:16] = logits[8:16].round()  # ties, also between ranks
    logits[16], logits[17] = 0.0, -0.0
    logits[17, 200] = 0.0
    logits[18] *= 1e30
    logits[19] = -1e30 - logits[19].abs()
    logits[20], logits[20, 299] = -torch.inf, -3e38
    logits[21] = -torch.inf
    for row, (value, columns) in enumerate(
        ((value, columns) for value in WORST for columns in ([3], [250], [3, 250])), 22
    ):
        logits[row, columns] = value
    return logits


def greedy(count: int) -> RowSettings:
    return SlotSettings(64, CpuDevice()).greedy(count)


def shards_of(world: World) -> tuple[LogitShards, Tensor]:
    """What a rank has, and its columns of `rows`."""
    ops.load()
    ranks = TensorParallel(world.rank, world.size, world.tensors)
    (first, last) = Shard.of_vocabulary(VOCABULARY, ranks).ranges[0]
    model: Any = SimpleNamespace(
        logit_columns=range(first, last), config=SimpleNamespace(vocab_size=VOCABULARY)
    )
    own = rows()[:, first:last].contiguous()
    return LogitShards(model, ranks, torch.device("cpu")), own


def parts(world: World) -> list[tuple[list[int], list[int]]]:
    """Greedy tokens, and sampled ones of several numbers of rows, with their status."""
    shards, own = shards_of(world)
    found = [shards.best(own, greedy(len(own)))]
    found += [
        shards.sample(own[:count], random(count), torch.arange(count))
        for count in (1, 2, 3, len(own))
    ]
    return [(tokens.tolist(), status.tolist()) for tokens, status in found]


def scored(world: World) -> list[list[Any]]:
    """Log-probabilities of a token of each row, and of the most likely ones."""
    shards, own = shards_of(world)
    assert shards.least_columns >= 20
    return [
        [each.tolist() for each in shards.top_logprobs(own, requested_ids(len(own)), k)]
        for k in (1, 5, 20)
    ]


def requested_ids(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.int32) * 37 % VOCABULARY


@pytest.mark.parametrize("size", [2, 4])
def test_log_probabilities_are_those_of_all_columns(size: int, tmp_path: Path) -> None:
    ops.load()
    logits = rows()
    for of_rank in run_ranks(tmp_path, size, scored):
        for k, (chosen, values, ids) in zip((1, 5, 20), of_rank, strict=True):
            right = ops.top_logprobs(logits, requested_ids(len(logits)), k)
            close = {"atol": 2e-5, "rtol": 1e-6}
            torch.testing.assert_close(torch.tensor(chosen), right[0], **close)
            torch.testing.assert_close(torch.tensor(values), right[1], **close)
            counts = right[1] > -1e4  # excluded tokens come last, in any order
            assert torch.equal(torch.tensor(ids)[counts], right[2].long()[counts])


@pytest.mark.parametrize("size", [2, 4])
def test_tokens_are_those_of_all_columns(size: int, tmp_path: Path) -> None:
    ops.load()
    logits = rows()
    expected = [ops.sample(logits, *_given(greedy(len(logits))))]
    expected += [
        ops.sample(logits[:count], *_given(random(count), torch.arange(count)))
        for count in (1, 2, 3, len(logits))
    ]
    for of_rank in run_ranks(tmp_path, size, parts):
        for (tokens, status), (all_tokens, all_status) in zip(of_rank, expected, strict=True):
            assert status == all_status.tolist()
            for token, right, what in zip(tokens, all_tokens.tolist(), status, strict=True):
                assert token == right or what, "an error stands in its place"
    assert set(expected[0][1].tolist()) == {0, 1, 2}


def random(count: int) -> RowSettings:
    """Temperatures, top-k, top-p and min-p of all sizes, some rows greedy."""
    settings = SlotSettings(64, CpuDevice())
    for slot in range(count):
        options = SamplingParams(
            temperature=(0.0, 0.7, 1.0, 3.0)[slot % 4],
            top_k=(0, 0, 5, 1, 100)[slot % 5],
            top_p=(1.0, 0.8, 0.1)[slot % 3],
            min_p=(0.0, 0.2)[slot % 2],
        )
        settings.put([slot], options, [slot * 77])
    return settings.gather(np.arange(count, dtype=np.int32))[0]


def _given(settings: RowSettings, steps: Tensor | None = None) -> tuple[Tensor, ...]:
    return (
        settings.temperature,
        settings.top_k,
        settings.top_p,
        settings.min_p,
        settings.seeds,
        settings.seeds if steps is None else steps,
    )
