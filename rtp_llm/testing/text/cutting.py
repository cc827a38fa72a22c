# SPDX-License-Identifier: Apache-2.0
"""Runs parsers over texts that are cut in every way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

from rtp_llm.text.parsers.deltas import OutputDelta
from rtp_llm.text.parsers.parser import joined
from rtp_llm.text.parsers.registry import make_parser
from rtp_llm.text.parsers.spec import ParserSpec


def read(spec: ParserSpec, pieces: Iterable[str]) -> list[OutputDelta]:
    """The deltas of an answer that comes in these pieces, neighbours of one kind joined."""
    parser = make_parser(spec)
    deltas: list[OutputDelta] = []
    for piece in pieces:
        deltas.extend(parser.feed(piece))
    return joined([*deltas, *parser.finish()])


def cut(text: str, borders: Sequence[int]) -> list[str]:
    """The pieces of a text that is cut at these places."""
    return [text[start:end] for start, end in pairwise([0, *sorted(borders), len(text)])]


def read_every_way(spec: ParserSpec, text: str, in_three: int = 40) -> list[OutputDelta]:
    """The deltas of the whole text, which are those of it cut anywhere.

    It is cut into characters, at each place, and, up to a length of `in_three`, at each two.
    """
    whole = read(spec, [text])
    assert read(spec, text) == whole, f"one character at a time: {text!r}"
    places = range(1, len(text))
    for border in places:
        assert read(spec, cut(text, [border])) == whole, f"cut at {border}: {text!r}"
    for two in combinations(places, 2) if len(text) <= in_three else ():
        assert read(spec, cut(text, two)) == whole, f"cut at {two}: {text!r}"
    return whole
