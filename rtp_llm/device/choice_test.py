# SPDX-License-Identifier: Apache-2.0
"""Tests of the choice among kinds and of its explanation."""

from __future__ import annotations

import pytest

from rtp_llm.device.base import Support
from rtp_llm.device.choice import AUTO, NoChoiceError, choose, load_class, outcomes, reasons


class Kind:
    def __init__(self, name):
        self.name = name


QUICK, SLOW, LAST = (Kind(name) for name in ("quick", "slow", "last"))
ANSWERS = [(QUICK, Support.no("no wings")), (SLOW, Support.yes()), (LAST, Support.yes())]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (AUTO, ["no: no wings", "chosen", "supported, lower priority"]),
        ("last", ["no: no wings", "supported", "chosen by --kind"]),
        ("quick", ["no: no wings", "supported", "supported"]),
    ],
)
def test_what_became_of_each(requested, expected):
    assert outcomes(ANSWERS, requested, "--kind") == expected


def test_the_best_that_can_is_chosen_or_the_one_named_or_the_reason_is_said():
    assert choose(ANSWERS, AUTO, "--kind", "flying") is SLOW
    assert choose(ANSWERS, "last", "--kind", "flying") is LAST
    for answers, requested, words in (
        (ANSWERS, "quick", "^--kind quick: no wings .flying.$"),
        (ANSWERS, "other", "^--kind other is unknown; there are auto, quick, slow, last$"),
        (ANSWERS[:1], AUTO, "^nothing computes flying: quick: no wings$"),
    ):
        with pytest.raises(NoChoiceError, match=words):
            choose(answers, requested, "--kind", "flying")


def test_reasons_are_those_of_a_no():
    assert reasons(ANSWERS) == "quick: no wings"


def test_a_class_by_its_place():
    assert load_class("rtp_llm.device.base:Support") is Support
