# SPDX-License-Identifier: Apache-2.0
"""Where thinking begins, ends and must end, token by token."""

from __future__ import annotations

from rtp_llm.request.constraints import Thinking
from rtp_llm.worker.grammar.reasoning import Phase, ReasoningState


def follow(thinking: Thinking, tokens: str) -> list[str]:
    """What is expected after each token: the phase's first letter, or the forced token."""
    reasoning, seen = ReasoningState.of(thinking), []
    for token in tokens:
        reasoning = reasoning.after(ord(token))
        seen.append(reasoning.phase.name[0] if reasoning.forced is None else chr(reasoning.forced))
    return seen


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def test_it_ends_behind_its_end() -> None:
    assert "".join(follow(Thinking(end_ids=ids("ab")), "xabx")) == "TTOO"


def test_an_end_may_begin_inside_itself() -> None:
    assert "".join(follow(Thinking(end_ids=ids("aab")), "aaaab")) == "TTTTO"
    assert "".join(follow(Thinking(end_ids=ids("abac")), "ababac")) == "TTTTTO"


def test_the_budget_forces_what_is_missing_of_the_end() -> None:
    assert "".join(follow(Thinking(end_ids=ids("ab"), budget=2), "xyabz")) == "TabOO"
    assert "".join(follow(Thinking(end_ids=ids("ab"), budget=2), "xab")) == "TbO"
    assert ReasoningState.of(Thinking(end_ids=ids("ab"), budget=0)).forced == ord("a")


def test_it_may_be_opened() -> None:
    thinking = Thinking(begin_ids=ids("<>"), end_ids=ids("/"), budget=1)
    assert "".join(follow(thinking, "<>x/y")) == "OT/OO"
    assert ReasoningState.of(thinking).phase is Phase.OPENING
    assert ReasoningState.of(thinking).after(ord("x")).phase is Phase.OVER
