"""Tests of one rank's part in the steps of all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rtp_llm.distributed.lockstep import Agreement
from rtp_llm.engine.rank_steps import RankSteps


class Others:
    """The other ranks, the experts and the balancer at once."""

    def __init__(self):
        self.log = []
        self.seen = 0
        self.stopping = False
        self.ready = True
        self.answer = Agreement(0, True, False, True)

    def agree(self, tokens, ready=True, has_more=False):
        self.log.append(("agree", tokens, self.stopping))
        return self.answer

    def begin(self, tokens):
        self.log.append(("begin", tokens))

    def before_step(self, ready):
        self.log.append(("before", ready))

    def __getattr__(self, name):
        if name == "forms":
            return SimpleNamespace(begin=self.begin)
        return lambda: self.log.append((name,))


@pytest.fixture
def others():
    return Others()


@pytest.fixture
def steps(others):
    return RankSteps(others, others, others, others)


def test_a_rank_without_tokens_takes_part(steps, others):
    others.answer = Agreement(5, True, False, False)
    assert not steps.begin(0)
    parts = [("agree", 0, False), ("before", False), ("begin", 5), ("take_part",), ("after_step",)]
    assert others.log == parts
    assert steps.awake


def test_a_rank_with_tokens_computes_them(steps, others):
    others.answer = Agreement(5, True, False, True)
    assert steps.begin(3)
    assert others.log == [("agree", 3, False), ("before", True), ("begin", 5)]


def test_it_sleeps_once_nobody_has_work_and_all_have_read_the_same(steps, others):
    steps.wake(4)
    assert steps.awake and others.seen == 4
    others.answer = Agreement(0, False, False, True)
    assert not steps.begin(0) and steps.awake
    others.answer = Agreement(0, True, False, True)
    assert not steps.begin(0) and not steps.awake


def test_ranks_part_together(steps, others):
    others.answer = Agreement(5, True, True, True)
    assert not steps.begin(3)  # nothing that the one which leaves would have to answer
    assert steps.stopped and not steps.awake
    assert others.log == [("agree", 3, False)]


@pytest.mark.parametrize("awake", [False, True])
def test_who_leaves_tells_the_others_if_they_may_wait_for_it(steps, others, awake):
    if awake:
        steps.wake(1)
    steps.leave()
    assert others.log == [("agree", 0, True)] * awake + [("close",)]
