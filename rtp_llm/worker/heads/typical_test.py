# SPDX-License-Identifier: Apache-2.0
"""typical_p keeps what transformers keeps, of the rows that ask for it, and draws fairly of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from rtp_llm import ops
from rtp_llm.device import resolve_device
from rtp_llm.ops.sampling.sampling import ALL_BANNED, NOT_FINITE
from rtp_llm.ops.sampling.sampling_reference import weigh_rows
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.worker.heads import typical as typical_module
from rtp_llm.worker.heads.sampler import SampledDrafts, Sampler
from rtp_llm.worker.heads.sampling_flags import TYPICAL, sampling_flags
from rtp_llm.worker.heads.typical import typical
from rtp_llm.worker.new_sequences import NewSequences

PROMPT = np.zeros(1, np.int32)
DRAWS = 8000


def logits(rows: int, vocabulary: int, seed: int = 1) -> torch.Tensor:
    return 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def sample(
    values: torch.Tensor, params: list[SamplingParams], drafts: SampledDrafts | None = None
) -> NDArray[np.int32]:
    """A token for each row, whose seed is its number."""
    ops.load()
    sampler = Sampler(len(params), resolve_device("cpu"))
    flags = 0
    for slot, each in enumerate(params):
        sampler.add(NewSequences([slot], [slot], [slot], PROMPT, each, ()))
        flags |= sampling_flags(each)
    count = len(params)
    plan: Any = SimpleNamespace(
        sampling_flags=flags,
        num_rows=count,
        row_slots=np.arange(count, dtype=np.int32),
        row_ids=np.arange(count),
        row_steps=np.full(count, 5),
        history_tokens=np.empty(0, np.int32),
        history_cu=np.zeros(count + 1, np.int32),
    )
    return sampler.submit(values.clone(), plan, drafts=drafts).read().row_tokens


def probabilities_of_transformers(row: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """In the order of its `generate`."""
    scores, ids = row[None].double(), torch.zeros(1, 1, dtype=torch.long)
    warpers: list[Any] = [TemperatureLogitsWarper(params.temperature)]
    if params.top_k > 0:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        warpers.append(MinPLogitsWarper(params.min_p))
    warpers.append(TypicalLogitsWarper(params.typical_p))
    for warper in warpers:
        scores = warper(ids, scores)
    return scores.softmax(1)[0]


def assert_drawn_from(tokens: NDArray[np.int32], probabilities: torch.Tensor) -> None:
    expected = DRAWS * probabilities.numpy()
    counts = np.bincount(tokens, minlength=len(expected))
    assert not counts[expected == 0].any()
    possible = expected > 0
    distance = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    # Chi-square of at most 11 degrees of freedom that one in a million exceeds; seeds are fixed.
    assert distance < 49.4


@pytest.mark.parametrize("mass", [0.01, 0.2, 0.5, 0.9, 0.95, 0.999])
def test_what_is_kept_is_what_transformers_keeps(mass: float) -> None:
    values = torch.cat([logits(24, 301), logits(4, 301, 2) / 100, 5 * logits(4, 301, 3)]).double()
    values[3, ::2] = -torch.inf  # tokens that are forbidden
    values[5] = 0.0  # all alike: all are kept
    values[6] = values[6].round()  # ties
    expected = TypicalLogitsWarper(mass)(torch.zeros(1, 1), values).isfinite()
    weights = (values - values.amax(1, keepdim=True)).exp()
    kept = typical(weights, torch.full((len(values),), mass, dtype=torch.float64))
    assert (kept == expected).all()
    assert kept.any(1).all() and kept[5].all()


@pytest.mark.parametrize("nearest", [1, 40, 300])
def test_few_of_the_nearest_keep_what_all_would(
    monkeypatch: pytest.MonkeyPatch, nearest: int
) -> None:
    values = torch.cat([4 * logits(6, 301), logits(2, 301, 2) / 100, logits(1, 301).round()])
    values[2, ::2] = -torch.inf
    weights = (values - values.amax(1, keepdim=True)).double().exp()
    for mass in (0.02, 0.3, 0.95):
        share = torch.full((len(values),), mass, dtype=torch.float64)
        expected = typical(weights, share)
        monkeypatch.setattr(typical_module, "_NEAREST", nearest)
        assert (typical(weights, share) == expected).all()
        for row in range(len(values)):  # alone, too: what others need changes nothing
            assert (typical(weights[row : row + 1], share[:1])[0] == expected[row]).all()
        monkeypatch.undo()


def test_weights_are_the_same_with_and_without_sorting() -> None:
    values = logits(5, 301)
    values[0, 7], values[1], values[2, ::3], values[3] = torch.nan, -torch.inf, -torch.inf, 2.5
    temperature, min_p = torch.tensor([0.7, 1, 1.3, 1, 0.01]), torch.tensor([0, 0.1, 0.2, 1, 0.5])
    none, all_of_it = torch.zeros(5, dtype=torch.int32), torch.ones(5)
    sorted_weights = weigh_rows(values, temperature, none, all_of_it, min_p).weights
    unsorted = typical_module._weigh_unranked(values, temperature, min_p)
    rows = [2, 3, 4]  # the others cannot be sampled
    assert (unsorted[rows] == sorted_weights[rows]).all()
    assert unsorted.isfinite().all()


@pytest.mark.parametrize(
    "options",
    [
        {"typical_p": 0.5},
        {"typical_p": 0.9, "temperature": 0.6},
        {"typical_p": 0.8, "top_k": 6},
        {"typical_p": 0.6, "top_p": 0.7, "temperature": 1.7},
        {"typical_p": 0.7, "min_p": 0.1},
        {"typical_p": 0.4, "top_k": 9, "top_p": 0.95, "min_p": 0.02},
    ],
    ids=str,
)
def test_tokens_are_drawn_from_what_is_kept(options: dict[str, Any]) -> None:
    params = SamplingParams(**options)
    row = logits(1, 12, seed=7)[0] / 2
    tokens = sample(row.expand(DRAWS, -1), [params] * DRAWS)
    assert_drawn_from(tokens, probabilities_of_transformers(row, params))


def test_sampled_drafts_leave_the_distribution_as_it_is() -> None:
    params = SamplingParams(typical_p=0.6, temperature=0.8)
    row, draft_row = logits(1, 12, seed=7)[0] / 2, logits(1, 12, seed=8)[0] / 2
    random = torch.Generator().manual_seed(9)
    drafted = torch.multinomial((draft_row / 0.8).softmax(0), DRAWS, True, generator=random).int()
    drafts = SampledDrafts(drafted, draft_row.expand(DRAWS, -1).contiguous(), None)
    tokens = sample(row.expand(DRAWS, -1), [params] * DRAWS, drafts)
    assert 0.05 < (tokens == drafted.numpy()).mean() < 0.95
    assert_drawn_from(tokens, probabilities_of_transformers(row, params))


def test_each_row_has_its_own_setting_whatever_stands_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(typical_module, "_MAX_LOGITS", 3 * 257)  # several rounds
    option_sets: list[dict[str, Any]] = [
        {},
        {"typical_p": 0.3},
        {"temperature": 0.0, "typical_p": 0.3},
        {"top_p": 0.5},
        {"typical_p": 0.9, "top_p": 0.8},
        {"typical_p": 1.0},
        {"typical_p": 0.2, "logprobs": 2},
    ]
    params = [SamplingParams(**options) for options in option_sets * 3]
    values = logits(len(params), 257)
    together = sample(values, params)
    for row, each in enumerate(params):
        slot = len(params)
        alone = [SamplingParams()] * row + [each] + [SamplingParams()] * (slot - row - 1)
        assert sample(values, alone)[row] == together[row], option_sets[row % len(option_sets)]
    assert (sample(values, params) == together).all(), "seeds reproduce"
    assert together[2] == values[2].argmax()


def test_rows_that_cannot_be_sampled_say_so() -> None:
    values = logits(3, 40)
    values[0, 7], values[1] = torch.nan, -torch.inf
    tokens = sample(values, [SamplingParams(typical_p=0.5)] * 3)
    assert tokens[:2].tolist() == [-1 - NOT_FINITE, -1 - ALL_BANNED] and tokens[2] >= 0


def test_only_sampled_rows_need_it() -> None:
    assert sampling_flags(SamplingParams(typical_p=0.5)) & TYPICAL
    for options in ({}, {"typical_p": 1.0}, {"typical_p": 0.5, "temperature": 0.0}):
        assert not sampling_flags(SamplingParams(**options)) & TYPICAL  # type: ignore[arg-type]
