# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtp_llm.text.stop_strings import StopStrings

# An example, or drawing it, may have to wait for a core.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Few letters, so that stops overlap each other and the text often.
LETTERS = st.text(alphabet="ab<é", max_size=30)
STOPS = st.lists(st.text(alphabet="ab<é", min_size=1, max_size=5), max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The rule, spelt out: the first stop to be complete, the longest of equal ends."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(chunks: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None]:
    finder = StopStrings(stops, include=include)
    out = "".join(finder.feed(chunk) for chunk in chunks) + finder.flush()
    return out, finder.matched


@unhurried
@given(LETTERS, STOPS, st.data())
def test_any_cutting_gives_the_same_text(text: str, stops: list[str], data: st.DataObject) -> None:
    borders = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    edges = [0, *borders, len(text)]
    chunks = [text[a:b] for a, b in pairwise(edges)]
    expected = cut(text, stops)
    assert run(chunks, stops) == expected
    assert run(list(text), stops) == expected
    assert run([text], stops) == expected


@unhurried
@given(LETTERS, STOPS)
def test_nothing_is_held_longer_than_needed(text: str, stops: list[str]) -> None:
    finder = StopStrings(stops)
    out = ""
    for position, character in enumerate(text):
        out += finder.feed(character)
        if finder.matched:
            break
        held = text[len(out) : position + 1]
        assert not held or any(stop.startswith(held) for stop in stops)
        longer = text[len(out) - 1 : position + 1] if out else ""
        assert not longer or not any(stop.startswith(longer) for stop in stops)


def test_include_passes_the_stop_on() -> None:
    assert run(["one E", "ND two"], ["END"], include=True) == ("one END", "END")
    assert run(["one E", "ND two"], ["END"]) == ("one ", "END")


def test_a_stop_may_begin_in_skipped_text_but_not_end_there() -> None:
    finder = StopStrings(["ab"])
    assert finder.feed("xa") == "x"
    assert finder.skip("abab") == "aabab"
    assert finder.skip("ca") == "c"
    assert finder.feed("b!") == ""
    assert finder.matched == "ab"


def test_empty_stops_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings(["a", ""])
