# SPDX-License-Identifier: Apache-2.0
"""Tests of one rank's part in the steps of all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rtp_llm.distributed.group import RankLostError
from rtp_llm.distributed.lockstep import Agreement
from rtp_llm.engine.ranks.rank_steps import RankSteps

BATCH = SimpleNamespace(num_tokens=3, num_seqs=2, max_seqlen_q=2)


class Others:
    """The other ranks, the experts and the balancer at once."""

    def __init__(self):
        self.log = []
        self.seen = 0
        self.stopping = False
        self.ready = True
        self.answer = Agreement(0, True, False, True)

    def agree(self, tokens, ready=True, has_more=False, sequences=0, longest=0):
        self.sizes = (sequences, longest)
        self.log.append(("agree", tokens, self.stopping))
        return self.answer

    def begin(self, tokens):
        self.log.append(("begin", tokens))

    def before_step(self, ready):
        self.log.append(("before", ready))

    def __getattr__(self, name):
        if name == "modes":
            return SimpleNamespace(begin=self.begin, abort=lambda: self.log.append(("abort",)))
        return lambda: self.log.append((name,))


@pytest.fixture
def others():
    return Others()


@pytest.fixture
def steps(others):
    return RankSteps(others, others, others, others)


def test_a_rank_without_tokens_takes_part(steps, others):
    others.answer = Agreement(5, True, False, False)
    assert not steps.begin(None)
    parts = [("agree", 0, False), ("before", False), ("begin", 5), ("take_part",), ("after_step",)]
    assert others.log == parts
    assert steps.awake


def test_a_rank_with_tokens_computes_them(steps, others):
    others.answer = Agreement(5, True, False, True)
    assert steps.begin(BATCH)
    assert others.log == [("agree", 3, False), ("before", True), ("begin", 5)]
    assert others.sizes == (2, 2)


def test_a_rank_that_is_gone_ends_what_waits_for_it(steps, others):
    def lost(*_):
        raise RankLostError("gone")

    others.agree = lost
    with pytest.raises(RankLostError, match="gone"):
        steps.begin(BATCH)
    assert others.log == [("abort",)]


class Graphs:
    """The graphs of the ranks; notes what is asked of them in the others' log."""

    def __init__(self, log, left, fits):
        self.log, self.left, self.fits = log, left, fits

    @property
    def complete(self):
        return not self.left

    def capture_next(self):
        self.left -= 1
        self.log.append(("capture", self.left))

    def agree(self, *numbers):
        self.log.append(("choose", *numbers))
        return self.fits

    def __getattr__(self, name):
        return lambda: self.log.append((name,))


def test_all_ranks_replay_or_none_does(steps, others):
    others.answer = Agreement(5, True, False, True, 4, 2)
    for fits, with_tokens, without in (
        (True, [], [("replay_empty",), ("after_step",)]),
        (False, [("begin", 5)], [("begin", 5), ("take_part",), ("after_step",)]),
    ):
        steps.graphs = Graphs(others.log, 0, fits)
        for batch, then in ((BATCH, with_tokens), (None, without)):
            others.log.clear()
            assert steps.begin(batch) == (batch is not None)
            assert others.log[1:] == [("before", True), ("choose", 5, 4, 2), *then]


def test_graphs_are_captured_while_no_rank_has_work_and_until_then_none_sleeps(steps, others):
    steps.graphs = Graphs(others.log, 2, True)
    others.answer = Agreement(0, False, False, True)  # one has not read the others' messages
    assert not steps.begin(None) and steps.awake
    others.answer = Agreement(0, True, False, True)
    assert not steps.begin(None) and steps.awake
    assert not steps.begin(None) and not steps.awake
    assert [each for each in others.log if each[0] == "capture"] == [("capture", 1), ("capture", 0)]


def test_graphs_end_before_the_communicators_that_they_use(steps, others):
    steps.graphs = Graphs(others.log, 0, True)
    steps.leave()
    assert others.log == [("discard",), ("close",)]


def test_it_sleeps_once_nobody_has_work_and_all_have_read_the_same(steps, others):
    steps.wake(4)
    assert steps.awake and others.seen == 4
    others.answer = Agreement(0, False, False, True)
    assert not steps.begin(None) and steps.awake
    others.answer = Agreement(0, True, False, True)
    assert not steps.begin(None) and not steps.awake


def test_ranks_part_together(steps, others):
    others.answer = Agreement(5, True, True, True)
    assert not steps.begin(BATCH)  # nothing that the one which leaves would have to answer
    assert steps.stopped and not steps.awake
    assert others.log == [("agree", 3, False)]


@pytest.mark.parametrize("awake", [False, True])
def test_a_leaving_rank_notifies_others_that_may_wait_for_it(steps, others, awake):
    if awake:
        steps.wake(1)
    steps.leave()
    assert others.log == [("agree", 0, True)] * awake + [("close",)]
