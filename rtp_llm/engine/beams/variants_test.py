# SPDX-License-Identifier: Apache-2.0
"""Diverse groups and variable widths find what a plain search in float64 finds."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.engine.messages import RequestError
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

WORDS, STOPS, LENGTH = 97, (2, 5), 10
TIE = 1e-6
SIZES: dict[str, Any] = {"seq_size_per_block": 4, "max_seq_len": 60, "max_running_requests": 40}


@dataclass
class Group:
    """Beams (tokens, sum), best first, and sequences that have ended (score, tokens)."""

    beams: list[tuple[list[int], float]] = field(default_factory=lambda: [([], 0.0)])
    ended: list[tuple[float, list[int]]] = field(default_factory=list)


class PlainSearch:
    """One continuation after the other, with all of the vocabulary."""

    def __init__(self, model: Any, prompt: list[int], search: BeamSearch, beams: int) -> None:
        self.model, self.prompt, self.search = model, prompt, search
        self.groups = [Group() for _ in range(search.num_beam_groups)]
        self.widths = search.variable_num_beams or (beams // search.num_beam_groups,)
        self.kept = self.widths[:LENGTH][-1]

    def logprobs(self, tokens: list[int]) -> list[float]:
        with torch.no_grad():
            logits = self.model(torch.tensor([self.prompt + tokens])).logits[0, -1]
        assert logits.dtype == torch.float64
        return list(logits.log_softmax(0).tolist())

    def score(self, total: float, length: int) -> float:
        return total / length**self.search.length_penalty

    def run(self) -> list[tuple[float, list[int]]]:
        for length in range(1, LENGTH + 1):
            width = self.widths[min(length, len(self.widths)) - 1]
            chosen: list[int] = []
            for group in self.groups:
                if group.beams:
                    self.step(group, width, length, chosen)
                    chosen += [tokens[-1] for tokens, _ in group.beams]
                    if not self.can_improve(group, length):
                        group.beams = []
        return sorted((each for group in self.groups for each in group.ended), reverse=True)

    def step(self, group: Group, width: int, length: int, chosen: list[int]) -> None:
        penalty = self.search.diversity_penalty
        candidates = [
            (total + value - penalty * chosen.count(token), beam, token)
            for beam, (tokens, total) in enumerate(group.beams)
            for token, value in enumerate(self.logprobs(tokens))
        ]
        candidates.sort(key=lambda each: -each[0])
        known, group.beams = group.beams, []
        for rank, (total, beam, token) in enumerate(candidates):
            tokens = [*known[beam][0], token]
            following = candidates[rank + 1][0]
            assert total - following > TIE, f"{tokens} ties: choose another prompt"
            if token in STOPS or length == LENGTH:
                if rank < width:
                    group.ended.append((self.score(total, length), tokens))
            elif len(group.beams) < width:
                group.beams.append((tokens, total))
            if rank >= width and (len(group.beams) == width or length == LENGTH):
                break
        group.ended = sorted(group.ended, reverse=True)[: self.kept]

    def can_improve(self, group: Group, length: int) -> bool:
        if len(group.ended) < self.kept or not group.beams:
            return True
        if self.search.early_stopping is True:
            return False
        if self.search.early_stopping == "never" and self.search.length_penalty > 0:
            length = LENGTH
        return self.score(group.beams[0][1], length) > group.ended[-1][0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """A folder, and its model in float64."""
    folder = tmp_path_factory.mktemp("model")
    reference = save_model(folder, "llama", vocab_size=WORDS, eos_token_id=STOPS[0])
    with each_token_alone():
        yield folder, copy.deepcopy(reference).double()


@pytest.fixture(scope="module")
def engine(model: tuple[Path, Any]) -> TinyEngine:
    return TinyEngine(model[0], **SIZES)


def run(
    engine: TinyEngine, searches: Sequence[tuple[list[int], int, BeamSearch]]
) -> list[list[tuple[float, list[int]]]]:
    """What searches at the same time give: scores, of the sums of log-probabilities, and tokens."""
    given = {"max_tokens": LENGTH, "stop_token_ids": STOPS[1:]}
    requests = [
        engine.add(prompt, n=beams, inputs={"beam_search": search}, **given)
        for prompt, beams, search in searches
    ]
    engine.run()
    engine.assert_all_free()
    found: list[list[tuple[float, list[int]]]] = [[] for _ in requests]
    for (request, _), outcome in sorted(engine.outcomes.items()):
        if request in requests and outcome.error is None:
            at = requests.index(request)
            total = sum(entry.logprob for entry in outcome.logprobs)
            score = total / len(outcome.tokens) ** searches[at][2].length_penalty
            found[at].append((score, outcome.tokens))
    return found


DIVERSE = [
    (4, {"num_beam_groups": 2, "diversity_penalty": 0.7}),
    (6, {"num_beam_groups": 3, "diversity_penalty": 2.5, "length_penalty": 0.0}),
    (4, {"num_beam_groups": 4, "diversity_penalty": 0.3, "early_stopping": True}),
    (8, {"num_beam_groups": 2, "diversity_penalty": 1.1, "early_stopping": "never"}),
    (6, {"num_beam_groups": 2, "diversity_penalty": 0.0, "length_penalty": -1.0}),
]
VARIABLE = [
    (6, {"variable_num_beams": (2, 6, 3)}),
    (5, {"variable_num_beams": (1, 1, 5), "length_penalty": 2.0}),
    (8, {"variable_num_beams": (8, 1, 4), "early_stopping": True}),
    (4, {"variable_num_beams": (4, 3, 2, 1), "early_stopping": "never"}),
    (3, {"variable_num_beams": (3,) * 20, "length_penalty": 0.5}),
]


def test_as_a_plain_search(engine: TinyEngine, model: tuple[Path, Any]) -> None:
    """All of them at the same time, next to a usual search."""
    cases = [
        (random_prompt(4 + 3 * number, number, WORDS), beams, BeamSearch(**options))
        for number, (beams, options) in enumerate([*DIVERSE, (3, {}), *VARIABLE])
    ]
    for found, (prompt, beams, search) in zip(run(engine, cases), cases, strict=True):
        wanted = PlainSearch(model[1], prompt, search, beams).run()
        assert [tokens for _, tokens in found] == [tokens for _, tokens in wanted], search
        if not search.diversity_penalty:  # else scores are less than log-probabilities
            scores = [score for score, _ in wanted]
            assert [score for score, _ in found] == pytest.approx(scores, abs=1e-4, rel=1e-5)


def test_groups_differ_and_the_best_are_given(engine: TinyEngine) -> None:
    prompt = random_prompt(7, 1, WORDS)
    diverse = BeamSearch(num_beam_groups=4, diversity_penalty=1000.0)
    few = BeamSearch(num_beam_groups=4, diversity_penalty=1000.0, num_return_sequences=2)
    plain, apart, best = run(
        engine, [(prompt, 4, BeamSearch()), (prompt, 4, diverse), (prompt, 4, few)]
    )
    assert len({tokens[0] for _, tokens in apart}) == 4 > len({tokens[0] for _, tokens in plain})
    assert best == apart[:2]


@pytest.mark.parametrize(
    ("problem", "options", "given"),
    [
        ("num_beam_groups=3 must divide the 4 beams", {"num_beam_groups": 3}, {}),
        ("num_beam_groups=0", {"num_beam_groups": 0}, {}),
        ("needs num_beam_groups above 1", {"diversity_penalty": 0.5}, {}),
        ("from 0 to 1000", {"num_beam_groups": 2, "diversity_penalty": float("nan")}, {}),
        ("send one of them", {"num_beam_groups": 2, "variable_num_beams": (4,)}, {}),
        ("at least 1 each", {"variable_num_beams": (4, 0)}, {}),
        ("largest one must be the 4 beams", {"variable_num_beams": (2, 3)}, {}),
        ("ends with 2 beams", {"variable_num_beams": (4, 2), "num_return_sequences": 3}, {}),
        ("stop strings", {"num_beam_groups": 2}, {"stop": ["x"]}),
    ],
)
def test_what_is_refused(
    engine: TinyEngine, problem: str, options: dict[str, Any], given: dict[str, Any]
) -> None:
    with pytest.raises(RequestError, match=problem):
        inputs = {"beam_search": BeamSearch(**options)}
        engine.add([3, 4], n=4, max_tokens=8, inputs=inputs, **given)
    assert not engine.engine.has_work
