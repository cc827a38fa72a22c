# SPDX-License-Identifier: Apache-2.0
"""Sampling: tokens equal to the reference's, distributions, rows apart from their batch, edits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.sampling import sampling_reference as reference
from rtp_llm.ops.sampling.sampling import ALL_BANNED, NOT_FINITE
from rtp_llm.testing.operator_checks import ISAS, cpu_only, kernel_runs, running
from rtp_llm.testing.sampling_rows import random_logits, random_settings

every_isa = pytest.mark.parametrize("isa", ISAS)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def settings(
    rows: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    first_seed: int = 0,
) -> tuple[Tensor, ...]:
    """Equal settings for all rows, each with a seed of its own."""
    return (
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        torch.arange(first_seed, first_seed + rows),
        torch.zeros(rows, dtype=torch.int64),
    )


@every_isa
@pytest.mark.parametrize("kind", ["plain", "peaked", "tied", "equal", "masked"])
@pytest.mark.parametrize("vocab", [1, 2, 7, 33, 130, 1000, 4097, 20000])
def test_tokens_equal_the_reference(isa: str, kind: str, vocab: int) -> None:
    rows = 12 if vocab < 5000 else 6
    logits = random_logits(rows, vocab, kind)
    before = logits.clone()
    options = random_settings(rows, vocab)
    expected, expected_status = reference.sample_reference(logits, *options)
    with running(isa), kernel_runs("sample"):
        tokens, status = ops.sample(logits, *options)
    assert tokens.dtype == torch.int32
    assert torch.equal(status, expected_status)
    assert torch.equal(tokens, expected)
    assert torch.equal(logits, before)


def expected_distribution(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> Tensor:
    """Straight from the rules, in float64, without the reference's code."""
    p = torch.softmax(logits.double() / temperature, dim=0)
    order = sorted(range(len(p)), key=lambda i: (-p[i].item(), i))
    kept = order[:top_k] if top_k > 0 else order
    total = sum(p[i].item() for i in kept)
    mass, smallest = 0.0, []
    for i in kept:
        smallest.append(i)
        mass += p[i].item() / total
        if mass >= top_p:
            break
    least = min_p * p[order[0]].item()
    result = torch.zeros_like(p)
    for i in smallest:
        if p[i].item() >= least:
            result[i] = p[i]
    return result / result.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 1.0, 0.0),
        (1.5, 5, 1.0, 0.0),
        (1.0, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.1),
        (0.8, 12, 0.9, 0.05),
        (100.0, -1, 0.99, 0.0),
    ],
)
def test_samples_follow_the_distribution(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    samples = 100_000
    logits = torch.randn(40) * 1.5
    rows = logits.expand(samples, -1).contiguous()
    tokens, status = ops.sample(rows, *settings(samples, temperature, top_k, top_p, min_p, 7))
    expected = expected_distribution(logits, temperature, top_k, top_p, min_p) * samples
    counts = torch.bincount(tokens.long(), minlength=40).double()
    assert not status.any()
    assert counts[expected == 0].sum() == 0
    likely = expected > 5
    rest = torch.tensor([samples - counts[likely].sum(), samples - expected[likely].sum()])
    chi_square = ((counts - expected)[likely].square() / expected[likely]).sum()
    chi_square += (rest[0] - rest[1]).square() / rest[1].clamp(min=5)
    freedom = max(int(likely.sum()), 1)
    # Five standard deviations: the seeds are fixed, so this cannot fail by chance later.
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


def test_steps_of_one_seed_are_independent_samples() -> None:
    samples = 20_000
    logits = torch.zeros(samples, 2)
    temperature, top_k, top_p, min_p, seeds, steps = settings(samples)
    steps = torch.arange(samples)
    tokens, _ = ops.sample(logits, temperature, top_k, top_p, min_p, seeds.zero_(), steps)
    ones = tokens.float()
    assert abs(ones.mean() - 0.5) < 0.02
    assert abs((ones[1:] * ones[:-1]).mean() - 0.25) < 0.02


def test_philox_equals_the_published_values() -> None:
    # Random123's known answers for philox4x32-10: counter and key of zeros; words 0 and 1.
    zero = torch.zeros(1, dtype=torch.int64)
    uniform = reference.philox_uniform(zero, zero).item()
    assert uniform == ((0xE169C58D << 32 | 0x6627E8D5) >> 11) * 2.0**-53


def test_row_does_not_depend_on_its_batch() -> None:
    logits = torch.randn(9, 3000)
    options = random_settings(9, 3000)
    together, _ = ops.sample(logits, *options)
    for order in (torch.tensor([4]), torch.tensor([8, 4, 0, 4]), torch.arange(9).flip(0)):
        part, _ = ops.sample(logits[order], *(option[order] for option in options))
        assert torch.equal(part, together[order])


@every_isa
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_distribution_are_reported(isa: str, temperature: float) -> None:
    logits = torch.randn(7, 300).clamp(max=5)
    logits[:, 123] = 9.0
    logits[0, 7] = torch.nan
    logits[1, 299] = torch.inf
    logits[2] = -torch.inf
    logits[3] = torch.nan
    logits[4, :] = -torch.inf
    logits[4, 5] = torch.nan
    logits[4, [77, 88]] = -3.0
    logits[5, :200] = -torch.inf  # some tokens may well be forbidden
    logits[5, 250] = 9.5
    with running(isa):
        tokens, status = ops.sample(logits, *settings(7, temperature, 1 if temperature else 0))
    assert status.tolist() == [NOT_FINITE, NOT_FINITE, ALL_BANNED, NOT_FINITE, NOT_FINITE, 0, 0]
    assert tokens.tolist() == [123, 123, 0, 0, 77, 250, 123]
    assert torch.equal(reference.sample_reference(logits, *settings(7, temperature))[1], status)


@pytest.mark.parametrize("top_k", [1, 3, 40])
def test_ties_end_with_the_lowest_index(top_k: int) -> None:
    logits = torch.zeros(2000, 400)
    tokens, _ = ops.sample(logits, *settings(2000, 1.0, top_k))
    assert set(tokens.tolist()) == set(range(top_k))


@every_isa
@pytest.mark.parametrize("vocab", [60, 12000])
@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 20}, {"min_p": 0.2}, {"top_p": 0.999, "min_p": 0.2}], ids=str
)
def test_nearly_equal_logits_may_swap_places(
    isa: str, vocab: int, filters: dict[str, float]
) -> None:
    rows = 30
    # Ten tokens each have 5, 6, 7, 8 and 9, the others -10: no filter ends within a group.
    logits = torch.full((vocab,), -10.0)
    logits[torch.randperm(vocab)[:50]] = torch.arange(5.0, 10).repeat(10)
    options = settings(rows, temperature=2.0, **filters)  # type: ignore[arg-type]
    noise = 1e-5 * torch.randn(2, rows, vocab)
    with running(isa):
        first, second = (ops.sample(logits + each, *options)[0] for each in noise)
    assert (first != second).sum() <= 1
    expected, _ = reference.sample_reference(logits + noise[0], *options)
    assert torch.equal(first, expected)
    assert len(first.unique()) > 5


@every_isa
@pytest.mark.parametrize("spread", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("vocab", [100, 5000])
@pytest.mark.parametrize("filters", [{"top_p": 0.9}, {"top_k": 90}, {"top_p": 0.99, "min_p": 0.5}])
def test_draws_near_either_end_equal_the_reference(
    isa: str, spread: float, vocab: int, filters: dict[str, float]
) -> None:
    rows = 40  # as many seeds, whose draws are spread over the whole vocabulary
    logits = spread * torch.randn(vocab).expand(rows, -1).contiguous()
    options = settings(rows, **filters)  # type: ignore[arg-type]
    with running(isa):
        tokens, _ = ops.sample(logits, *options)
    assert torch.equal(tokens, reference.sample_reference(logits, *options)[0])


def test_top_p_and_min_p_leave_one_token() -> None:
    logits = torch.randn(50, 1000)
    best = logits.argmax(dim=1).int()
    for options in (settings(50, top_p=0.0), settings(50, top_p=1e-9), settings(50, min_p=1.0)):
        assert torch.equal(ops.sample(logits, *options)[0], best)


def test_rows_of_a_wider_matrix_and_no_rows() -> None:
    wide = torch.randn(5, 700)
    options = random_settings(5, 500)
    expected, _ = ops.sample(wide[:, :500].contiguous(), *options)
    assert torch.equal(ops.sample(wide[:, :500], *options)[0], expected)
    tokens, status = ops.sample(torch.empty(0, 500), *settings(0))
    assert tokens.shape == status.shape == (0,)


@every_isa
@pytest.mark.parametrize("kind", ["plain", "peaked", "tied", "masked"])
@pytest.mark.parametrize(
    ("vocab", "k"), [(1, 1), (7, 7), (500, 3), (5000, 20), (5000, 2048), (5000, 4000)]
)
def test_top_logprobs_equal_the_reference(isa: str, kind: str, vocab: int, k: int) -> None:
    logits = random_logits(6, vocab, kind)
    logits[0, vocab // 2] = torch.nan
    logits[1] = -torch.inf
    tokens = torch.randint(-1, vocab + 1, (6,), dtype=torch.int32)
    expected = reference.top_logprobs_reference(logits, tokens, k)
    with running(isa), kernel_runs("top_logprobs"):
        actual = ops.top_logprobs(logits, tokens, k)
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-6, atol=2e-5)
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-6, atol=2e-5)
    assert torch.equal(actual[2], expected[2])
    assert actual[1].isfinite().all()


def test_top_logprobs_of_none_and_too_many() -> None:
    logits, tokens = torch.randn(3, 10), torch.zeros(3, dtype=torch.int32)
    chosen, values, ids = ops.top_logprobs(logits, tokens, 0)
    torch.testing.assert_close(chosen, logits.log_softmax(1)[:, 0])
    assert values.shape == ids.shape == (3, 0)
    with pytest.raises(RuntimeError, match="k is 11"):
        ops.top_logprobs(logits, tokens, 11)


def random_history(rows: int, vocab: int, length: int) -> tuple[Tensor, Tensor]:
    """Ragged tokens, some of them outside the vocabulary; the last row has none."""
    lengths = torch.randint(0, length, (rows,))
    lengths[-1] = 0
    cu = torch.cat((torch.zeros(1), lengths.cumsum(0))).int()
    return torch.randint(-2, vocab + 2, (int(cu[-1]),), dtype=torch.int32), cu


@pytest.mark.parametrize("vocab", [5, 300])
def test_penalties_equal_the_reference(vocab: int) -> None:
    rows = 7
    tokens, cu = random_history(rows, vocab, 60)
    penalties = (torch.rand(rows) + 0.5, torch.rand(rows) - 0.5, torch.rand(rows) - 0.5)
    penalties[0][0], penalties[1][0], penalties[2][0] = 1.0, 0.0, 0.0
    penalties[0][1] = 1.0
    output_lens = (torch.rand(rows) * cu.diff()).long()
    output_lens[2], output_lens[3] = cu.diff()[2] + 5, 0  # more than there are, and none
    logits = torch.randn(rows, vocab)
    expected = logits.clone()
    reference.apply_penalties_reference(expected, tokens, cu, output_lens, *penalties)
    with kernel_runs("apply_penalties"):
        ops.apply_penalties(logits, tokens, cu, output_lens, *penalties)
    torch.testing.assert_close(logits, expected)


def test_penalties_by_hand() -> None:
    """Repetition counts the prompt too, presence and frequency what was generated alone."""
    logits = torch.tensor([[2.0, -2.0, 1.0, 6.0]])
    one = torch.ones(1)
    tokens, cu = torch.tensor([3, 0, 3, 0, 1, 0, 9, -1]).int(), torch.tensor([0, 8]).int()
    ops.apply_penalties(logits, tokens, cu, torch.tensor([5]), 2 * one, 0.5 * one, 0.25 * one)
    assert logits.tolist() == [[2 / 2 - 0.5 - 2 * 0.25, -2 * 2 - 0.5 - 0.25, 1.0, 6 / 2]]


@pytest.mark.parametrize("repetition", [1.0, 2.0])
def test_presence_and_frequency_leave_a_prompt_alone(repetition: float) -> None:
    logits, one = torch.ones(2, 3), torch.ones(2)
    tokens, cu = torch.tensor([0, 0, 1, 0, 0, 1]).int(), torch.tensor([0, 3, 6]).int()
    output_lens = torch.tensor([0, 1])
    ops.apply_penalties(logits, tokens, cu, output_lens, repetition * one, one, one)
    first = 1 / repetition
    assert logits.tolist() == [[first, first, 1.0], [first, first - 2, 1.0]]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ngram_bans_equal_the_reference(size: int) -> None:
    rows, vocab = 9, 4
    tokens, cu = random_history(rows, vocab, 40)
    sizes = torch.full((rows,), size, dtype=torch.int32)
    sizes[1], sizes[2] = 0, 1000
    logits = torch.randn(rows, vocab)
    expected = logits.clone()
    reference.ban_repeated_ngrams_reference(expected, tokens, cu, sizes)
    with kernel_runs("ban_repeated_ngrams"):
        ops.ban_repeated_ngrams(logits, tokens, cu, sizes)
    assert torch.equal(logits, expected)
    assert (logits == -torch.inf).any()


def test_ngram_bans_by_hand() -> None:
    logits = torch.zeros(1, 5)
    tokens = torch.tensor([1, 2, 3, 1, 2, 4, 1, 2], dtype=torch.int32)
    cu = torch.tensor([0, 8], dtype=torch.int32)
    ops.ban_repeated_ngrams(logits, tokens, cu, torch.tensor([3], dtype=torch.int32))
    assert logits[0].isinf().nonzero().flatten().tolist() == [3, 4]


def test_logit_bias_adds_up_and_bans() -> None:
    logits = torch.zeros(3, 4)
    rows = torch.tensor([0, 0, 2, 2, 2], dtype=torch.int32)
    ids = torch.tensor([1, 1, 3, 4, -1], dtype=torch.int32)
    values = torch.tensor([1.0, 0.5, -torch.inf, 9.0, 9.0])
    expected = logits.clone()
    reference.add_logit_bias_reference(expected, rows, ids, values)
    with kernel_runs("add_logit_bias"):
        ops.add_logit_bias(logits, rows, ids, values)
    assert torch.equal(logits, expected)
    assert logits[0].tolist() == [0, 1.5, 0, 0]


def test_meta_functions_give_shapes_and_dtypes() -> None:
    logits = torch.empty(5, 90, device="meta")
    tokens, status = ops.sample(logits, *(option.to("meta") for option in settings(5)))
    assert (tokens.shape, tokens.dtype, status.dtype) == ((5,), torch.int32, torch.int8)
    chosen, values, ids = ops.top_logprobs(logits, tokens, 4)
    assert (chosen.shape, values.shape, ids.shape) == ((5,), (5, 4), (5, 4))
    assert ids.dtype == torch.int32


def test_wrong_arguments_are_named() -> None:
    logits, options = torch.randn(2, 10), settings(2)
    with pytest.raises(RuntimeError, match="sample: top_k"):
        ops.sample(logits, options[0], options[1].long(), *options[2:])
    with pytest.raises(RuntimeError, match="sample: logits"):
        ops.sample(logits.double(), *options)
    with pytest.raises(RuntimeError, match="sample: seeds"):
        ops.sample(logits, *options[:4], options[4][:1], options[5])


@cpu_only
def test_offsets_and_rows_that_are_not_there_are_named() -> None:
    logits, one = torch.randn(2, 10), torch.ones(2)
    ids, falling = torch.zeros(3).int(), torch.tensor([0, 3, 2]).int()
    with pytest.raises(RuntimeError, match="cu_tokens must rise"):
        ops.apply_penalties(logits, ids, falling, ids[:2].long(), one, one, one)
    with pytest.raises(RuntimeError, match="apply_penalties: output_lens"):
        ops.apply_penalties(logits, ids, falling, ids[:2], one, one, one)
    with pytest.raises(RuntimeError, match=r"rows\[1\] is 3 of 2 rows"):
        ops.add_logit_bias(logits, falling, ids, torch.ones(3))
