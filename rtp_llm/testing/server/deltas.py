# SPDX-License-Identifier: Apache-2.0
"""Random answers as typed deltas, in any pieces, for the writers of all protocols."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import strategies as st

from rtp_llm.text.parsers.deltas import (
    OutputDelta,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
)

TEXTS = st.sampled_from(
    ["", " ", "\n\n", "a", " b", "é😀", '"}', "\\", "</think>", "data: x\n\n", "\u2028", "\x00"]
)
VALUES = st.none() | st.booleans() | st.integers(-9, 9) | TEXTS
ARGUMENTS = st.dictionaries(TEXTS, VALUES, max_size=3).map(json.dumps)


@st.composite
def answers(draw: Any) -> list[OutputDelta]:
    """Deltas in an order that a parser may give them; the last call may be cut anywhere."""
    deltas: list[OutputDelta] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "reasoning", "call"]), max_size=6)):
        if kind == "call":
            name, call_id = draw(st.sampled_from(["f", "ns.g"])), draw(st.sampled_from(["", "c"]))
            deltas.append(ToolCallBegin(calls, name, call_id and f"{call_id}{calls}"))
            deltas += [ToolArguments(calls, piece) for piece in draw(pieces(draw(ARGUMENTS)))]
            calls += 1
        else:
            made = TextDelta if kind == "text" else ReasoningDelta
            deltas += [made(piece) for piece in draw(st.lists(TEXTS, max_size=3))]
    return deltas


def pieces(text: str) -> st.SearchStrategy[list[str]]:
    """The text, cut anywhere."""

    def cut(places: list[int]) -> list[str]:
        ends = [0, *sorted(places), len(text)]
        return [text[begin:end] for begin, end in itertools.pairwise(ends)]

    return st.lists(st.integers(0, len(text)), max_size=3).map(cut)
