# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtp_llm.text.stop_regex import MAX_STATES, StopRegex, StopRegexError, check_stop_regex

unhurried = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXTS = st.text(alphabet="aAb1 \n", max_size=24)
PATTERNS = (
    "a",
    "ab|ba",
    "(?i)ab",
    r"\d+ ",
    r"[^ab]b",
    r"\s{2}",
    "a.b",
    "(?s)a.b",
    "(a|b){2,3}1",
    "^b",
    "(?m)^b",
    r"a*?b1",
    r"\w\W\w",
    "(?:a(?i:B))+1",
)


def cut(text: str, pattern: str) -> tuple[str, bool]:
    """The rule, spelt out by Python's own engine: the first end, then the earliest beginning."""
    compiled = re.compile(pattern)
    for end in range(1, len(text) + 1):
        for start in range(end):
            if compiled.fullmatch(text, start, end):
                # fullmatch takes `pos` for the beginning of the text.
                anchored = not pattern.endswith("^b") or start == 0
                if anchored or ("(?m)" in pattern and text[start - 1] == "\n"):
                    return text[:start], True
    return text, False


def run(chunks: list[str], *patterns: str, **kwargs: object) -> tuple[str, str | None]:
    finder = StopRegex(patterns, **kwargs)  # type: ignore[arg-type]
    out = "".join(finder.feed(chunk) for chunk in chunks) + finder.flush()
    return out, finder.matched


@pytest.mark.parametrize("pattern", PATTERNS)
@unhurried
@given(text=TEXTS, data=st.data())
def test_any_cutting_gives_the_text_of_pythons_engine(
    pattern: str, text: str, data: st.DataObject
) -> None:
    borders = data.draw(st.lists(st.integers(0, len(text)), max_size=5).map(sorted))
    chunks = [text[a:b] for a, b in pairwise([0, *borders, len(text)])]
    shown, found = cut(text, pattern)
    assert run(chunks, pattern) == (shown, pattern if found else None)
    assert run([text], pattern) == (shown, pattern if found else None)


def test_texts_and_patterns_together() -> None:
    assert run(["one E", "ND 12"], r"\d\d", stops=["END"]) == ("one ", "END")
    assert run(["one 1", "2 END"], r"\d\d", stops=["END"]) == ("one ", r"\d\d")
    assert run(["one 1", "2 END"], r"\d\d", include=True) == ("one 12", r"\d\d")
    assert run(["a+", "b"], "c", stops=["+b"]) == ("a", "+b")


def test_skipped_text_may_begin_a_match_but_not_end_it() -> None:
    finder = StopRegex(["a+b"])
    assert finder.skip("ab xa") == "ab x"
    assert finder.feed("ab") == ""
    assert finder.matched == "a+b"


def test_text_without_a_beginning_of_a_match_is_not_held() -> None:
    finder = StopRegex([r"Obs\w+:"])
    assert finder.feed("Thought, Ob") == "Thought, "
    assert finder.feed("ject") == "Object"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "is not a regular expression: "),
        ("a*", "matches the empty text"),
        ("a$", r"looks at what comes next"),
        (r"a\b", r"looks at what comes next"),
        (r"(a)\1", "has back references"),
        ("a(?=b)", "has back references"),
        ("a{1000}", f"more than {MAX_STATES}"),
        ("((a{9}){9}){9}", f"needs more than {MAX_STATES} states"),
        ("a" * 2000, "at most 16 patterns of at most 1024"),
    ],
)
def test_what_cannot_be_used_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(StopRegexError, match=reason):
        check_stop_regex([pattern])


def test_patterns_that_stop_backtracking_engines_take_linear_time() -> None:
    began = time.process_time()
    text, found = run(["a" * 5000], "(a|a)+b", r"(a+)+c", r"(a*)*d")
    assert (len(text), found) == (5000, None)
    assert time.process_time() - began < 10
