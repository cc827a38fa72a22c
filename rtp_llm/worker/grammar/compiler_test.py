# SPDX-License-Identifier: Apache-2.0
"""Grammars are compiled once, on threads, and the latest are kept."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from rtp_llm.worker.grammar import compiler
from rtp_llm.worker.grammar.compiler import LONGEST_GRAMMAR, Compilation, GrammarCompiler
from rtp_llm.worker.grammar.library import GrammarError


class Library:
    """Compiles a text to itself, once it may; "wrong" is none."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.may.set()
        self.compiled: list[str] = []

    def compile(self, text: str) -> Any:
        self.may.wait(30)
        self.compiled.append(text)
        if text == "wrong":
            raise GrammarError("it is wrong")
        return text

    def fill(self, tasks: object, masks: object) -> None: ...

    def size_of(self, text: str) -> int:
        return len(text)


def done(compilation: Compilation) -> Any:
    """What came of it."""
    deadline = time.monotonic() + 30
    while not compilation.ready:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return compilation.result()


def test_equal_texts_are_compiled_once_and_notified() -> None:
    library, notified = Library(), threading.Event()
    made = GrammarCompiler(library, notified.set)
    library.may.clear()
    first, second = made.compile("a"), made.compile("a")
    assert not first.ready
    library.may.set()
    assert done(first) == done(second) == "a"
    assert notified.wait(30)
    assert done(made.compile("a")) == "a"
    assert library.compiled == ["a"]


def test_those_of_the_latest_use_are_kept_by_their_bytes() -> None:
    library = Library()
    made = GrammarCompiler(library, cache_bytes=10)
    for text in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"):
        done(made.compile(text))
    assert library.compiled == ["aaaa", "bbbb", "cccc", "bbbb"]
    assert done(made.compile("d" * 50)) == "d" * 50, "one is always kept"
    done(made.compile("d" * 50))
    assert library.compiled[4:] == ["d" * 50]


def test_a_wrong_one_says_why_each_time() -> None:
    made = GrammarCompiler(Library())
    for _ in range(2):
        with pytest.raises(GrammarError, match="it is wrong"):
            done(made.compile("wrong"))
    with pytest.raises(GrammarError, match="characters is longer than"):
        made.compile("x" * (LONGEST_GRAMMAR + 1))


def test_one_that_takes_too_long_is_given_up_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Library()
    made = GrammarCompiler(library)
    library.may.clear()
    monkeypatch.setattr(compiler, "_DEADLINE", 0.02)
    with pytest.raises(GrammarError, match=r"longer than 0\.02 s"):
        done(made.compile("a"))
    monkeypatch.undo()
    library.may.set()
    assert done(made.compile("a")) == "a"
