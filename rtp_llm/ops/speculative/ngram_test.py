# SPDX-License-Identifier: Apache-2.0
"""Drafts by n-grams against their references, and against the definition.

The definition is that of the index on the host (rtp_llm/cpp/speculative/ngram_test.cc); engines
compare the two step by step (rtp_llm/engine/device_ngram_test.py).
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.speculative.ngram_reference import (
    append_accepted_reference,
    match_ngrams_reference,
)
from rtp_llm.testing.operator_checks import ISAS, kernel_runs, running

NGRAMS = [(1, 1), (2, 2), (1, 4), (2, 4), (3, 32)]


class Case(NamedTuple):
    """Outputs with histories, and rows for their drafts."""

    history: Tensor
    lens: Tensor
    outputs: Tensor
    cu_rows: Tensor
    texts: list[list[int]]  # of the outputs; empty where they have no history
    counts: list[int]  # of their drafts


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def make(lengths: list[int], vocabulary: int, *, gap: int = 0, seed: int = 0) -> Case:
    """A history of each length, in some order, with a free one; and an output without any."""
    source = random.Random(f"{lengths} {vocabulary} {gap} {seed}")
    capacity = max(lengths, default=0) + 9
    order = source.sample(range(len(lengths) + 1), len(lengths))
    texts = [[source.randrange(vocabulary) for _ in range(length)] for length in lengths]
    whole = torch.full((len(lengths) + 1, capacity + gap), vocabulary, dtype=torch.int32)
    lens = [0] * (len(lengths) + 1)
    for row, text in zip(order, texts, strict=True):
        whole[row, : len(text)] = int32(text)
        lens[row] = len(text)
    counts = [source.choice((0, 1, 3, 7)) for _ in range(len(lengths) + 1)]
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count + 1)
    outputs = int32([*order, -1])
    return Case(whole[:, :capacity], int32(lens), outputs, int32(bounds), [*texts, []], counts)


def match(case: Case, min_n: int, max_n: int) -> Tensor:
    """Drafts of the kernel, which are those of the reference, too."""
    given = case.history, case.lens, case.outputs, case.cu_rows, min_n, max_n
    rows = int(case.cu_rows[-1])
    actual = torch.full((rows,), -7, dtype=torch.int32)
    expected = actual.clone()
    before = case.history.clone()
    with kernel_runs("match_ngrams"):
        ops.match_ngrams(actual, *given)
    match_ngrams_reference(expected, *given)
    assert torch.equal(actual, expected)
    assert torch.equal(case.history, before)
    return actual


def searched(text: list[int], min_n: int, max_n: int, count: int) -> list[int]:
    """The definition, by searching everything."""
    for n in range(min(max_n, len(text) - 1), min_n - 1, -1):
        for end in range(n, len(text)):
            if text[end - n : end] == text[-n:]:
                line = text[end:]
                while len(line) < count:
                    line.append(line[end - len(text)])
                return line[:count]
    return [-1] * count


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("min_n", "max_n"), NGRAMS)
@pytest.mark.parametrize("vocabulary", [1, 2, 5, 40])
def test_drafts_are_those_of_the_reference_and_of_the_definition(
    isa: str, min_n: int, max_n: int, vocabulary: int
) -> None:
    some = 0
    for seed, gap in enumerate((0, 3)):
        case = make([1, 0, 2, 3, 17, 64, 300], vocabulary, gap=gap, seed=seed)
        with running(isa):
            drafts = match(case, min_n, max_n).tolist()
        for output, (text, count) in enumerate(zip(case.texts, case.counts, strict=True)):
            begin = int(case.cu_rows[output])
            found = drafts[begin : begin + count]
            assert drafts[begin + count] == -7, "an output's last row has no draft"
            if count:
                assert found == searched(text, min_n, max_n, count)
                some += found[0] >= 0
    assert some or (min_n == 3 and vocabulary == 40)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("length", [4095, 8192, 32771])
@pytest.mark.parametrize("gap", [0, 1])
def test_long_histories(isa: str, length: int, gap: int) -> None:
    """One occurrence, at either end and anywhere between, among tokens that all differ."""
    text = torch.arange(length, dtype=torch.int32)
    for place in (2, 3, 1000, length - 6, length - 3):
        history = torch.zeros(2, length + 3 + gap, dtype=torch.int32)[:, : length + 3]
        history[1, :length] = text
        history[1, length - 2 : length] = history[1, place - 2 : place]
        case = Case(
            history, int32([0, length]), int32([1]), int32([0, 6]), [history[1].tolist()], [5]
        )
        with running(isa):
            drafts = match(case, 2, 4)
        period = length - place
        expected = [int(history[1, place + i % period]) for i in range(5)]
        assert drafts[:5].tolist() == expected


@pytest.mark.parametrize("isa", ISAS)
def test_many_outputs(isa: str) -> None:
    case = make([random.Random(row).randrange(500) for row in range(256)], 6)
    with running(isa):
        assert (match(case, 2, 4) >= 0).sum() > 200


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("outputs", [0, 1, 5, 130])
@pytest.mark.parametrize("longest", [0, 1, 3, 40])
def test_accepted_tokens_are_appended(isa: str, outputs: int, longest: int) -> None:
    source = random.Random(f"{outputs} {longest}")
    case = make([source.randrange(30) for _ in range(outputs)], 50)
    counts = [source.randint(0, longest) for _ in range(outputs + 1)]
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count + 1)
    sampled = int32([source.randrange(2) for _ in range(bounds[-1])])
    drafts = int32([source.choice((0, 0, 1, -1)) for _ in range(bounds[-1])])
    drafts[::3] = sampled[::3]
    actual, reference = ((case.history.clone(), case.lens.clone()) for _ in range(2))
    with running(isa), kernel_runs("append_accepted"):
        ops.append_accepted(*actual, case.outputs, int32(bounds), sampled, drafts)
    append_accepted_reference(*reference, case.outputs, int32(bounds), sampled, drafts)
    assert torch.equal(actual[0], reference[0])
    assert torch.equal(actual[1], reference[1])
    for output, row in enumerate(case.outputs.tolist()[:-1]):
        rows = range(bounds[output], bounds[output + 1])
        kept = []
        for place in rows:
            kept.append(int(sampled[place]))
            if sampled[place] != drafts[place]:
                break
        text = (case.texts[output] + kept)[: case.history.shape[1]]
        assert actual[0][row, : actual[1][row]].tolist() == text


def test_what_a_history_has_no_room_for_is_dropped() -> None:
    history, lens = torch.zeros(2, 5, dtype=torch.int32), int32([3, 5])
    sampled = int32([1, 2, 3, 4, 5])
    ops.append_accepted(history, lens, int32([0, 1]), int32([0, 4, 5]), sampled, sampled)
    assert lens.tolist() == [5, 5]
    assert history.tolist() == [[0, 0, 0, 1, 2], [0] * 5]


def test_wrong_arguments_are_named() -> None:
    history, lens, ids = torch.zeros(2, 5, dtype=torch.int32), int32([3, 5]), int32([0, 1])
    cu_rows, rows = int32([0, 2, 5]), int32([0] * 5)
    with pytest.raises(RuntimeError, match=r"match_ngrams: history is int64 \[2, 5\]; expected"):
        ops.match_ngrams(rows, history.long(), lens, ids, cu_rows, 1, 2)
    with pytest.raises(RuntimeError, match=r"match_ngrams: cu_rows is int32 \[2\]; expected shape"):
        ops.match_ngrams(rows, history, lens, ids, cu_rows[:2], 1, 2)
    for min_n, max_n in ((0, 2), (3, 2)):
        with pytest.raises(RuntimeError, match=f"n-grams of {min_n} to {max_n} tokens; expected"):
            ops.match_ngrams(rows, history, lens, ids, cu_rows, min_n, max_n)
    with pytest.raises(RuntimeError, match=r"append_accepted: lens is int32 \[1\]; expected shape"):
        ops.append_accepted(history, lens[:1], ids, cu_rows, rows, rows)
    with pytest.raises(RuntimeError, match=r"append_accepted: drafts is int32 \[4\]; expected"):
        ops.append_accepted(history, lens, ids, cu_rows, rows, rows[:4])


def test_both_are_traceable() -> None:
    history, lens, ids = torch.zeros(2, 5, dtype=torch.int32), int32([3, 5]), int32([0, 1])
    cu_rows, rows = int32([0, 2, 5]), int32([0] * 5)
    checks = ("test_schema", "test_faketensor")
    given = (rows, history, lens, ids, cu_rows, 1, 2)
    torch.library.opcheck(torch.ops.rtp_llm.match_ngrams.default, given, test_utils=checks)
    appended = (history, lens, ids, cu_rows, rows, rows.clone())
    torch.library.opcheck(torch.ops.rtp_llm.append_accepted.default, appended, test_utils=checks)
