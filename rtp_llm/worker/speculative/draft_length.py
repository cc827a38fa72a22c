# SPDX-License-Identifier: Apache-2.0
"""How many drafts of a sequence a step verifies: by the load, and none where they cost more time
than they save."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rtp_llm._runtime import Drafts, Result
    from rtp_llm.worker.plan.step_plan import StepPlan

_NEEDED = 3  # samples before a duration counts
_KEPT = 9  # of which the median counts: one slow step changes nothing
_PROBE = 64  # steps at least after which the full length is tried where less of it is in use
_PROBE_SHARE = 0.01  # of the time, at most, that is lost by it
_PLAIN = 256  # steps after which one is taken without drafts, to measure it
_CHOOSE = 8  # steps after which the length is chosen anew
_WEIGHT = 0.03  # of a step in what is known of drafts
_MARGIN = 0.01  # that a longer draft must gain


def shorten(drafts: Drafts | None, limit: int) -> Drafts | None:
    """The first ``limit`` of each sequence's drafts."""
    if drafts is None:
        return None
    ids, tokens, lengths = drafts
    if limit >= tokens.shape[1]:
        return drafts
    return ids, tokens, np.minimum(lengths, np.int32(limit))


class _Median:
    """Of the latest samples."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_KEPT)

    def add(self, sample: float) -> None:
        self._samples.append(sample)

    @property
    def known(self) -> bool:
        return len(self._samples) >= _NEEDED

    @property
    def value(self) -> float:
        return sorted(self._samples)[len(self._samples) // 2]


@dataclass
class _Costs:
    """Of steps of one batch size."""

    steps: int = 0
    chosen: int = -1  # the length that is in use; -1: not chosen yet
    plain: _Median = field(default_factory=_Median)  # seconds of a step without drafts
    plain_due: int = 0  # the step from which on it is measured again
    probe_due: int = _PROBE
    # Drafts in a step, of all sequences together, and seconds, by the length that was in use.
    verify: defaultdict[int, tuple[_Median, _Median]] = field(
        default_factory=lambda: defaultdict(lambda: (_Median(), _Median()))
    )

    def seconds(self, drafts: NDArray[np.float64]) -> NDArray[np.float64]:
        """What steps with so many drafts take: between those that were measured."""
        known = ((count.value, took.value) for count, took in self.verify.values() if took.known)
        counts, took = zip((0.0, self.plain.value), *sorted(known), strict=True)
        return np.interp(drafts, counts, np.maximum.accumulate(np.array(took)))


class _Step(NamedTuple):
    """One that was submitted."""

    begin: float
    limit: int  # the length in use
    outputs: int
    decodes: bool  # all of its sequences do: its duration says what drafts cost


class DraftLength:
    """Chooses the length for each step, between the proposer and the scheduler.

    By default from what steps of this batch size took with and without drafts, and from how many
    drafts there were and how many of them were right lately. Belongs to the engine's thread.
    """

    def __init__(
        self,
        most: int,
        table: Sequence[tuple[int, int, int]] = (),
        *,
        adaptive: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``most``: the proposer's. ``table``: (first, last batch size, length) in order, from 1
        on; what is above takes the last length. Otherwise always ``most``, unless ``adaptive``."""
        self.limit = most  # of the latest step, but for those that only measure
        self._most, self._table, self._adaptive = most, tuple(table), adaptive and not table
        self._clock = clock
        self._batch = 1  # sequences in the latest step
        self._costs: defaultdict[int, _Costs] = defaultdict(_Costs)
        self._steps: deque[_Step] = deque()
        self._begin = self._committed = 0.0
        self._chosen = most
        # By place: the share of sequences with a draft there; such drafts lately, and right ones.
        self._offered = np.ones(most)
        self._tried = np.ones(most)
        self._right = np.ones(most)
        # Steps of one length that are to be added to these: sequences by drafts, and right ones.
        self._new_steps = self._new_limit = 0
        self._new_drafts = np.zeros(most + 1, np.int64)
        self._new_right = np.zeros(most + 1, np.int64)

    def choose(self) -> int:
        """The most drafts of a sequence in the next step, which begins with drafting."""
        self._begin = self._clock()
        if self._adaptive:
            self._chosen = self._adapted(self._costs[_size_class(self._batch)])
        else:
            self.limit = self._chosen = self._of_table()
        return self._chosen

    def submitted(self, plan: StepPlan | None) -> None:
        """It was scheduled with the length that was chosen last; None: nothing could run."""
        if plan is not None and self._most:
            decodes = plan.num_tokens == plan.num_rows
            self._steps.append(_Step(self._begin, self._chosen, plan.num_outputs, decodes))

    def committed(self, result: Result) -> None:
        """The oldest step that was submitted has ended."""
        if not self._steps:
            return
        step, now = self._steps.popleft(), self._clock()
        # A step that was submitted after another begins when that one ends.
        seconds = now - max(step.begin, self._committed)
        self._committed = now
        self._batch = max(1, step.outputs)
        if self._adaptive:
            self._learn(step, seconds, result)

    def forget(self) -> None:
        """Steps that were submitted will not be committed."""
        self._steps.clear()

    def _of_table(self) -> int:
        length = self._most
        for first, _, tokens in self._table:
            if first > self._batch:
                break
            length = tokens
        return length

    def _adapted(self, costs: _Costs) -> int:
        costs.steps += 1
        full = costs.verify[self._most][1]
        if not full.known:
            return self._most
        if costs.steps >= costs.plain_due:
            costs.plain_due = costs.steps + (_PLAIN if costs.plain.known else 4)
            return 0
        if not costs.plain.known:
            return self._most
        if costs.chosen < 0 or costs.steps % _CHOOSE == 0:
            costs.chosen = self._best(costs)
        self.limit = costs.chosen
        if costs.chosen < self._most and costs.steps >= costs.probe_due:
            lost = full.value / costs.plain.value - 1.0
            costs.probe_due = costs.steps + max(_PROBE, int(lost / _PROBE_SHARE))
            return self._most
        return costs.chosen

    def _best(self, costs: _Costs) -> int:
        """The shortest length whose tokens a second are hardly less than those of the best."""
        self._add_new()
        gained = np.cumsum(self._offered * self._right / self._tried)
        drafts = np.cumsum(self._offered) * self._batch
        tokens = 1.0 + np.concatenate(([0.0], gained))
        rates = tokens / costs.seconds(np.concatenate(([0.0], drafts)))
        return int(np.argmax(rates >= (1.0 - _MARGIN) * rates.max()))

    def _learn(self, step: _Step, seconds: float, result: Result) -> None:
        num_drafts = result.num_drafts
        if not step.decodes or len(num_drafts) != step.outputs:
            return
        count = int(num_drafts.sum())
        costs = self._costs[_size_class(self._batch)]
        if count:
            counts, took = costs.verify[step.limit]
            counts.add(count)
            took.add(seconds)
        else:
            costs.plain.add(seconds)
        if step.limit:
            self._count(step.limit, count, result)

    def _count(self, limit: int, count: int, result: Result) -> None:
        """Only counts: this is done in every step."""
        if limit != self._new_limit:
            self._add_new()
            self._new_limit = limit
        self._new_steps += 1
        if not count:
            self._new_drafts[0] += len(result.num_drafts)
            return
        right = np.minimum(np.maximum(result.num_tokens - 1, 0), result.num_drafts)
        self._new_drafts += np.bincount(result.num_drafts, minlength=self._most + 1)
        self._new_right += np.bincount(right, minlength=self._most + 1)

    def _add_new(self) -> None:
        if not self._new_steps:
            return
        sequences, tried = self._new_drafts.sum(), _at_least(self._new_drafts)
        keep = (1.0 - _WEIGHT) ** self._new_steps
        places = slice(self._new_limit)
        shares = tried[places] / sequences
        self._offered[places] = keep * self._offered[places] + (1.0 - keep) * shares
        kept = np.where(tried > 0, keep, 1.0)
        self._tried = kept * self._tried + _WEIGHT * tried
        self._right = kept * self._right + _WEIGHT * _at_least(self._new_right)
        self._new_steps = 0
        self._new_drafts[:] = self._new_right[:] = 0


def _at_least(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sequences by how many drafts -> by place, how many reach it."""
    return counts[::-1].cumsum()[::-1][1:].astype(np.float64)


def _size_class(batch: int) -> int:
    """Batch sizes that are measured together: its three leading bits."""
    shift = max(0, batch.bit_length() - 3)
    return batch >> shift << shift
