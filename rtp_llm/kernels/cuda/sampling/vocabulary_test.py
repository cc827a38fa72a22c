# SPDX-License-Identifier: Apache-2.0
"""Sampling at the sizes of real vocabularies, where keys share most of their digits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.sampling import sampling_reference as reference
from rtp_llm.ops.sampling.rejection_reference import rejection_sample_reference
from rtp_llm.testing.sampling_rows import random_logits, random_settings

VOCAB = 151_936
# Qwen3's, an odd one, Gemma's, and one whose rows no GPU's shared memory holds.
VOCABULARIES = [VOCAB, 151_937, 262_144, 600_000]


def assert_drawn(tokens: Tensor, expected: Tensor, logits: Tensor) -> None:
    """Weights are float32, the reference's float64: a draw between two neighbours may be close."""
    assert (tokens != expected).sum() <= 1
    drawn, wanted = (logits.gather(1, ids.long()[:, None]) for ids in (tokens, expected))
    torch.testing.assert_close(drawn, wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", ["plain", "peaked", "tied", "equal", "masked"])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_tokens_equal_the_reference(vocab: int, kind: str) -> None:
    torch.manual_seed(0)
    logits = random_logits(32, vocab, kind)
    options = random_settings(32, vocab)
    tokens, status = ops.sample(logits, *options)
    expected, expected_status = reference.sample_reference(logits, *options)
    assert torch.equal(status, expected_status)
    assert_drawn(tokens, expected, logits)
    assert torch.equal(ops.sample(logits, *options)[0], tokens)


@pytest.mark.parametrize("kind", ["plain", "peaked", "masked"])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_verified_drafts_equal_the_reference(vocab: int, kind: str) -> None:
    """What is left of p has float32's rounding of p and q: draws between neighbours are closer."""
    torch.manual_seed(0)
    logits, options = random_logits(32, vocab, kind), random_settings(32, vocab)
    draft_logits = logits.nan_to_num(neginf=-1.0) + torch.randn(32, vocab)
    drafts, _ = ops.sample(draft_logits, *options)
    drafts[:4] = -1
    given = logits, *options, drafts, draft_logits
    tokens, status = ops.rejection_sample(*given)
    expected, expected_status = rejection_sample_reference(*given)
    assert torch.equal(status, expected_status)
    assert (tokens != expected).sum() <= 2
    assert torch.equal(ops.rejection_sample(*given)[0], tokens)


@pytest.mark.parametrize("k", [1, 20, 5000])
def test_top_logprobs_equal_the_reference(k: int) -> None:
    torch.manual_seed(0)
    logits = random_logits(8, VOCAB, "tied" if k == 20 else "plain")
    tokens = torch.randint(0, VOCAB, (8,), dtype=torch.int32)
    actual = ops.top_logprobs(logits, tokens, k)
    expected = reference.top_logprobs_reference(logits, tokens, k)
    torch.testing.assert_close(actual[:2], expected[:2], rtol=1e-6, atol=2e-5)
    assert torch.equal(actual[2], expected[2])


@pytest.mark.parametrize("rows", [1, 7, 40, 300])
def test_tokens_do_not_depend_on_the_batch(rows: int) -> None:
    """Batches of other sizes are spread over other numbers of blocks."""
    torch.manual_seed(0)
    logits = random_logits(300, VOCAB, "plain")
    options = random_settings(300, VOCAB)
    together, _ = ops.sample(logits, *options)
    order = torch.randperm(300)[:rows]
    part, _ = ops.sample(logits[order], *(option[order] for option in options))
    assert torch.equal(part, together[order])


@pytest.mark.parametrize(
    ("kind", "top_k", "top_p"), [("plain", 0, 0.9), ("tied", 2000, 1.0), ("equal", 5000, 0.8)]
)
def test_draws_of_a_known_mass_do_not_depend_on_the_batch(
    kind: str, top_k: int, top_p: float
) -> None:
    """A block with all of a row stops where its token is; clusters add up all of it."""
    torch.manual_seed(0)
    logits = random_logits(140, VOCAB // 2, kind)
    ones, zeros = torch.ones(140), torch.zeros(140)
    seeds = torch.arange(140)
    options = ones, (zeros + top_k).int(), ones * top_p, zeros, seeds, seeds
    together, _ = ops.sample(logits, *options)
    for part in seeds.split(70):
        tokens, _ = ops.sample(logits[part], *(option[part] for option in options))
        assert torch.equal(tokens, together[part])


def test_outliers_leave_the_order_alone() -> None:
    """One logit far from all others, so that these share a bin of the whole range."""
    torch.manual_seed(0)
    logits = random_logits(24, VOCAB, "plain")
    logits[:8, 5] = -1e30
    logits[8:16, 5] = 1e30
    logits[16:, 5] = -torch.finfo(torch.float32).max
    logits[20:, 6] = torch.finfo(torch.float32).max
    options = random_settings(24, VOCAB)
    tokens, status = ops.sample(logits, *options)
    expected, expected_status = reference.sample_reference(logits, *options)
    assert torch.equal(status, expected_status)
    assert_drawn(tokens, expected, logits)
