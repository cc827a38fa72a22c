# SPDX-License-Identifier: Apache-2.0
"""Calls one after another, in a section with a marker at its end."""

from __future__ import annotations

from collections.abc import Callable

from rtp_llm.text.parsers.answer import Answer
from rtp_llm.text.parsers.source import Steps


def rest_of_section(
    answer: Answer, begin: str, close: str, read: Callable[[Answer], Steps[None]]
) -> Steps[None]:
    """The calls, each of which follows `begin`, and `close`. The first `begin` is read already."""
    again = True
    while again:
        yield from read(answer)
        yield from answer.source.spaces()
        again = yield from answer.source.literal(begin)
    if (yield from answer.source.closing(close)):
        answer.end_call()
