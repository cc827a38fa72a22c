# SPDX-License-Identifier: Apache-2.0
"""One rank's engine inside a test's process, on a CPU with graphs that run their step again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.engine.ranks.rank_steps import RankSteps
from rtp_llm.engine.start import build_worker
from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.worker.graphs.step_graphs import StepGraphs

_MAX_ROUNDS = 200


@dataclass
class Replays:
    """What a rank captured and replayed, in tokens of the sizes, and what happens to it there."""

    made: list[int] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)
    no_room: int | None = None  # capturing this size finds no memory
    last: int | None = None  # the process ends when it would replay once more

    def capture(self, tokens: int) -> None:
        if tokens == self.no_room:
            raise torch.OutOfMemoryError("by the test")
        self.made.append(tokens)

    def replay(self, tokens: int) -> None:
        if self.last == len(self.replayed):
            os._exit(1)
        self.replayed.append(tokens)


class _Graph:
    """Runs the captured step again, on the same memory; capturing it sends nothing."""

    capturing: _Graph | None = None

    def __init__(self, replays: Replays) -> None:
        self.pool = object()
        self._replays = replays
        self._call: Any = None
        self._places: list[int] = []

    @contextmanager
    def capture(self, stream: object = None) -> Iterator[None]:
        _Graph.capturing = self
        try:
            yield
        finally:
            _Graph.capturing = None

    def take(self, step: Any, batch: Any) -> torch.Tensor:
        """Called in place of the step while it is captured."""
        self._replays.capture(len(batch.token_ids))
        hidden: torch.Tensor = step(batch, alone=True)
        self._call = step, batch, hidden
        self._places = _places(step.__self__)
        return hidden

    def replay(self) -> None:
        step, batch, hidden = self._call
        self._replays.replay(len(batch.token_ids))
        assert self._places == _places(step.__self__), "a tensor that graphs read has moved"
        hidden.copy_(step(batch))


def _places(graphs: Any) -> list[int]:
    """Where everything is that a step reads and that outlives it."""
    ranks: RankSteps = graphs._ranks
    model = getattr(graphs._layers, "_model", graphs._layers)
    experts, maps = ranks._experts, [layer.map for layer in ranks._experts.layers]
    tensors = [*model.parameters(), *model.buffers(), experts.loads._counts]
    tensors += [weight for layer in experts.layers for weight in layer.weights]
    tensors += [part for each in maps for part in (each._copies, each._counts)]
    return [tensor.data_ptr() for tensor in tensors]


def capture_on_cpu(replays: Replays) -> None:
    """Let the engines of this process capture their steps."""
    allowed = {key: why for key, why in CpuDevice.refused.items() if key != "graph_capture"}
    made: Any = StepGraphs.__init__

    def remembering(self: StepGraphs, step: Any, *rest: Any) -> None:
        def call(batch: Any) -> torch.Tensor:
            graph = _Graph.capturing
            hidden: torch.Tensor = step(batch) if graph is None else graph.take(step, batch)
            return hidden

        made(self, call, *rest)

    for owner, name, value in (
        (CpuDevice, "refused", allowed),
        (CpuDevice, "new_graph", lambda self, pool=None: _Graph(replays)),
        (build_worker, "missing_operators", lambda device: []),
        (StepGraphs, "__init__", remembering),
    ):
        setattr(owner, name, value)


@dataclass(frozen=True)
class Play:
    """What a rank does: one after the other, its prompts of each round.

    `quiet`: it first waits until all sizes are captured.
    """

    rounds: Sequence[Sequence[Sequence[Sequence[int]]]]  # [round][rank] prompts
    max_tokens: int = 24
    quiet: bool = True
    until_moved: bool = False  # play the last round again until experts have moved
    scores: bool = False  # of the prompts' tokens too


@dataclass
class Played:
    """By round and prompt: tokens, log-probabilities of the prompt's. `counted`: loads by layer.

    `sizes`: how many graphs there are at the end; `replays` is of CPUs only.
    """

    replays: Replays
    tokens: list[list[list[int]]] = field(default_factory=list)
    scores: list[list[list[float]]] = field(default_factory=list)
    moved: bool = False
    counted: list[int] = field(default_factory=list)
    sizes: int = 0


def play(
    world: None, folder: Path, settings: dict[str, Any], plays: Play, replays: Sequence[Replays]
) -> Played:
    """A rank's part; `replays`: none where the device captures, else each rank's."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    found = Played(replays[rank] if replays else Replays())
    if replays:
        capture_on_cpu(found.replays)
    tiny = TinyEngine(folder, data_parallel_size=size, **settings)
    ranks = tiny.built.step_group
    assert isinstance(ranks, RankSteps)
    while plays.quiet and tiny.engine.has_work:
        tiny.step()
    rounds = list(plays.rounds)
    for number, prompts in enumerate(rounds, 1):
        request_ids = ask(tiny, prompts[rank], plays)
        ranks.wake(number)
        tiny.run()
        tiny.assert_all_free()
        outcomes = [tiny.outcomes[request, 0] for request in request_ids]
        found.tokens.append([outcome.tokens for outcome in outcomes])
        found.scores.append([scores_of(outcome) for outcome in outcomes])
        # Experts move in the background, when they get a core; all ranks swap in the same step.
        waits = plays.until_moved and not ranks._balancer.swaps
        if waits and number == len(rounds) < _MAX_ROUNDS:
            rounds.append(prompts)
    found.moved = ranks._balancer.swaps > 0
    found.counted = ranks._experts.loads.take().sum(1).tolist()
    found.sizes = len(ranks.graphs._captured) if ranks.graphs else 0
    ranks.leave()
    return found


def ask(tiny: TinyEngine, prompts: Sequence[Sequence[int]], plays: Play) -> list[int]:
    """Queue prompts; the numbers of the requests."""
    params: dict[str, Any] = {"prompt_logprobs": 1} if plays.scores else {}
    return [
        tiny.add(prompt, max_tokens=plays.max_tokens, ignore_eos=True, **params)
        for prompt in prompts
    ]


def scores_of(outcome: Outcome) -> list[float]:
    """Log-probabilities of a prompt's tokens, in their order."""
    scored = outcome.prompt_logprobs
    return [scored[place].logprob for place in sorted(scored)]
