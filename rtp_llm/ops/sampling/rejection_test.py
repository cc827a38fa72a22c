# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling: tokens equal to the reference's, and the distribution of the target."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.sampling import sampling_reference as reference
from rtp_llm.ops.sampling.rejection import DRAFT_STEPS
from rtp_llm.ops.sampling.rejection_reference import rejection_sample_reference
from rtp_llm.testing.operator_checks import ISAS, kernel_runs, running
from rtp_llm.testing.sampling_rows import random_logits, random_settings

every_isa = pytest.mark.parametrize("isa", ISAS)
SAMPLES = 100_000


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def settings(rows: int, first_seed: int = 0, **chosen: float) -> tuple[Tensor, ...]:
    """Equal settings for all rows, each with a seed of its own."""
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **chosen}
    return (
        torch.full((rows,), values["temperature"]),
        torch.full((rows,), int(values["top_k"]), dtype=torch.int32),
        torch.full((rows,), values["top_p"]),
        torch.full((rows,), values["min_p"]),
        torch.arange(first_seed, first_seed + rows),
        torch.zeros(rows, dtype=torch.int64),
    )


def sample_drafts(draft_logits: Tensor, options: tuple[Tensor, ...]) -> Tensor:
    """As proposers do: at the row's temperature, without filters."""
    temperature, _, top_p, _, seeds, steps = options
    none = torch.zeros_like(seeds, dtype=torch.int32)
    one, zero = torch.ones_like(top_p), torch.zeros_like(top_p)
    drafts, _ = ops.sample(draft_logits, temperature, none, one, zero, seeds, steps + DRAFT_STEPS)
    return drafts


@every_isa
@pytest.mark.parametrize("kind", ["plain", "peaked", "tied", "equal", "masked"])
@pytest.mark.parametrize("vocab", [1, 2, 7, 33, 130, 1000, 4097, 20000])
def test_tokens_equal_the_reference(isa: str, kind: str, vocab: int) -> None:
    rows = 24 if vocab < 5000 else 8
    logits, options = random_logits(rows, vocab, kind), random_settings(rows, vocab)
    draft_logits = logits.nan_to_num(neginf=-1.0) + torch.randn(rows, vocab)
    drafts = sample_drafts(draft_logits, options)
    drafts[::5] = -1
    drafts[3::8] = vocab
    before = logits.clone(), draft_logits.clone(), drafts.clone()
    expected, expected_status = rejection_sample_reference(logits, *options, drafts, draft_logits)
    with running(isa), kernel_runs("rejection_sample"):
        tokens, status = ops.rejection_sample(logits, *options, drafts, draft_logits)
    assert tokens.dtype == torch.int32
    assert torch.equal(status, expected_status)
    assert torch.equal(tokens, expected)
    assert all(map(torch.equal, before, (logits, draft_logits, drafts)))


@every_isa
@pytest.mark.parametrize("draft_vocab", [1, 57, 130])
def test_a_draft_vocabulary_of_its_own(isa: str, draft_vocab: int) -> None:
    rows, vocab = 40, 131
    ids = torch.randperm(vocab)[:draft_vocab].sort().values
    columns = torch.full((vocab,), -1, dtype=torch.int32)
    columns[ids] = torch.arange(draft_vocab, dtype=torch.int32)
    columns[columns < 0] = torch.tensor([-7, draft_vocab, 2**31 - 1])[
        torch.randint(3, (vocab - draft_vocab,))
    ].int()
    logits, options = random_logits(rows, vocab, "plain"), random_settings(rows, vocab)
    # Rows have a stride of their own, and there are more than are read.
    draft_logits = torch.randn(rows + 3, draft_vocab + 5)[:, :draft_vocab]
    drafts = ids[sample_drafts(draft_logits[:rows].contiguous(), options).long()].int()
    given = *options, drafts, draft_logits, columns
    expected, _ = rejection_sample_reference(logits, *given)
    with running(isa):
        tokens, _ = ops.rejection_sample(logits, *given)
    assert torch.equal(tokens, expected)


def probabilities(logits: Tensor, **chosen: float) -> Tensor:
    """Straight from the rules, in float64, without the reference's code."""
    p = torch.softmax(logits.double() / chosen.get("temperature", 1.0), dim=0)
    order = sorted(range(len(p)), key=lambda i: (-p[i].item(), i))
    kept = order[: int(chosen.get("top_k", 0)) or len(order)]
    total = sum(p[i].item() for i in kept)
    mass, smallest = 0.0, []
    for i in kept:
        smallest.append(i)
        mass += p[i].item() / total
        if mass >= chosen.get("top_p", 1.0):
            break
    least = chosen.get("min_p", 0.0) * p[order[0]].item()
    result = torch.zeros_like(p)
    for i in smallest:
        if p[i].item() >= least:
            result[i] = p[i]
    return result / result.sum()


def assert_drawn_from(tokens: Tensor, p: Tensor) -> None:
    """Chi-square: five standard deviations. The seeds are fixed, so this never fails by chance."""
    counts = torch.bincount(tokens.long(), minlength=len(p)).double()
    expected = p * len(tokens)
    assert counts[expected == 0].sum() == 0
    likely = expected > 5
    rest = torch.tensor([len(tokens) - counts[likely].sum(), len(tokens) - expected[likely].sum()])
    chi_square = ((counts - expected)[likely].square() / expected[likely]).sum()
    chi_square += (rest[0] - rest[1]).square() / rest[1].clamp(min=5)
    freedom = max(int(likely.sum()), 1)
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


def half(logits: Tensor, first: int) -> Tensor:
    """Every second token is impossible."""
    masked = logits.clone()
    masked[first::2] = -torch.inf
    return masked


TARGET, OTHER = torch.randn(2, 40, generator=torch.Generator("cpu").manual_seed(5), device="cpu")
ONE_HOT = torch.full((40,), -1e4, device="cpu").index_fill(0, torch.tensor(7, device="cpu"), 0.0)


@pytest.mark.parametrize(
    ("target", "draft", "chosen"),
    [
        (TARGET, TARGET, {}),
        (TARGET, OTHER, {}),
        (half(TARGET, 0), half(OTHER, 1), {}),
        (TARGET, ONE_HOT, {}),
        (ONE_HOT, TARGET, {}),
        (TARGET, TARGET, {"temperature": 0.6, "top_k": 5}),
        (TARGET, OTHER, {"temperature": 1.4, "top_p": 0.7}),
        (TARGET, OTHER, {"min_p": 0.2}),
        (TARGET, 2 * TARGET, {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.05}),
    ],
    ids=[
        "the same",
        "another",
        "disjoint",
        "one-hot draft",
        "one-hot target",
        "top-k",
        "top-p",
        "min-p",
        "all filters",
    ],
)
def test_tokens_have_the_distribution_of_the_target(
    target: Tensor, draft: Tensor, chosen: dict[str, float]
) -> None:
    place = torch.get_default_device()
    options = settings(SAMPLES, first_seed=11, **chosen)
    rows, draft_rows = (each.to(place).expand(SAMPLES, -1).contiguous() for each in (target, draft))
    drafts = sample_drafts(draft_rows, options)
    tokens, status = ops.rejection_sample(rows, *options, drafts, draft_rows)
    assert not status.any()
    temperature = options[0][0].item()
    with torch.device("cpu"):
        p, q = probabilities(target, **chosen), probabilities(draft, temperature=temperature)
        assert_drawn_from(tokens.cpu(), p)
    # Whether a draft is accepted, and what then comes, is as likely as it should be, too.
    overlap = torch.minimum(p, q).sum().item()
    accepted = (tokens == drafts).double().mean().item()
    assert accepted == pytest.approx(overlap, abs=5 * math.sqrt(0.25 / SAMPLES))
    if target is draft and not chosen:
        assert torch.equal(tokens, drafts)


def rows_with_drafts(rows: int, vocab: int = 300, **chosen: float) -> list[Any]:
    options = settings(rows, **chosen)
    logits, draft_logits = torch.randn(rows, vocab), torch.randn(rows, vocab)
    return [logits, *options, sample_drafts(draft_logits, options), draft_logits]


def test_rows_without_a_draft_are_sampled_as_ever() -> None:
    logits, *options, drafts, draft_logits = rows_with_drafts(60)
    expected, _ = ops.sample(logits, *options)
    drafts[:20] = -1
    draft_logits[20:30, 3] = torch.nan
    draft_logits[30:35, 3] = torch.inf
    draft_logits[35:40] = -torch.inf
    tokens, _ = ops.rejection_sample(logits, *options, drafts, draft_logits)
    assert torch.equal(tokens[:40], expected[:40])
    assert not torch.equal(tokens[40:], expected[40:])


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"top_k": 1}])
def test_greedy_rows_take_the_best_token(greedy: dict[str, float]) -> None:
    logits, *options, drafts, draft_logits = rows_with_drafts(30, **greedy)
    drafts[:10] = logits[:10].argmax(1).int()
    tokens, _ = ops.rejection_sample(logits, *options, drafts, draft_logits)
    assert torch.equal(tokens, logits.argmax(1).int())


def test_broken_rows_are_reported() -> None:
    logits, *options, drafts, draft_logits = rows_with_drafts(9)
    logits[0, 5], logits[1, 5], logits[2] = torch.nan, torch.inf, -torch.inf
    expected, expected_status = ops.sample(logits, *options)
    tokens, status = ops.rejection_sample(logits, *options, drafts, draft_logits)
    assert status.tolist() == expected_status.tolist() == [1, 1, 2, *[0] * 6]
    assert torch.equal(tokens[:3], expected[:3])


def test_an_empty_batch() -> None:
    tokens, status = ops.rejection_sample(*rows_with_drafts(0))
    assert tokens.shape == status.shape == (0,)


def test_a_row_does_not_depend_on_its_batch() -> None:
    given = rows_with_drafts(300, vocab=1031, top_p=0.9)
    together, _ = ops.rejection_sample(*given)
    for count in (1, 7, 40):
        order = torch.randperm(300)[:count]
        part, _ = ops.rejection_sample(*(each[order] for each in given))
        assert torch.equal(part, together[order])


def test_random_numbers_never_reach_zero_or_one(monkeypatch: pytest.MonkeyPatch) -> None:
    some = torch.zeros(1, dtype=torch.int64)
    for word in (0, 2**32 - 1):
        words = torch.full((1,), word)
        monkeypatch.setattr(reference, "_philox_words", lambda *_, words=words: (words, words))
        assert 0 < reference.philox_open_uniform(some, some).item() < 1


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (7, torch.zeros(3, dtype=torch.int32), "rejection_sample: drafts"),
        (7, torch.zeros(4, dtype=torch.int64), "rejection_sample: drafts"),
        (8, torch.zeros(4, 300, dtype=torch.bfloat16), "rejection_sample: draft_logits"),
        (8, torch.zeros(3, 300), "draft_logits is .* for logits"),
        (8, torch.zeros(4, 299), "draft_logits is .* for logits"),
        (5, torch.zeros(4, dtype=torch.int32), "rejection_sample: seeds"),
    ],
)
def test_mismatches_are_errors(place: int, wrong: Tensor, message: str) -> None:
    given = rows_with_drafts(4)
    given[place] = wrong.to(torch.get_default_device())
    with pytest.raises(RuntimeError, match=message):
        ops.rejection_sample(*given)
    columns = torch.zeros(299, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="rejection_sample: draft_columns"):
        ops.rejection_sample(*rows_with_drafts(4), columns)
