# SPDX-License-Identifier: Apache-2.0
"""Regular expressions: translates the syntax of requests to llguidance's.

Requests write ECMA-262 (JSON Schema's `pattern`) or Python's syntax; llguidance has the syntax of
Rust's `regex` crate, without look-around and with anchors at the very ends only. Both are parsed
here into one tree of alternatives, so that classes mean what ECMA-262 says, and what has no
counterpart is refused by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import llguidance

from rtp_llm.request.constraints import Grammar
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.lark import check_text
from rtp_llm.text.grammar.pattern_parser import END, START, Group, Item, no_nul, parse
from rtp_llm.text.grammar.vocabulary import byte_vocabulary

ANYTHING = "(?s:.*)"
MAX_ALTERNATIVES = 256
MAX_NAME = 100
# llguidance compiles what it can of a pattern at once; this much is a class of 100k states.
_MATCH_LIMITS = llguidance.LLParserLimits(max_lexer_states=20_000, verbose_errors=False)


def regex_grammar(pattern: str) -> Grammar:
    """A text that the whole pattern matches (Python's `re.fullmatch`; classes are ASCII)."""
    check_text(pattern, "the pattern")
    return Grammar(text=f"start: {terminal(whole(pattern))}\n")


def terminal(rust: str) -> str:
    """A pattern in Rust's syntax as a Lark terminal."""
    return f"/{llguidance.regex_to_lark(rust)}/"


@lru_cache(256)
def whole(pattern: str) -> str:
    """A pattern that is meant for a whole text, in Rust's syntax."""
    return _alternatives(pattern, "", newline_only=True)


@lru_cache(256)
def search(pattern: str) -> str:
    """A pattern in Rust's syntax for whole texts that contain a match of `pattern`."""
    check_text(pattern, "the pattern")
    return _alternatives(pattern, ANYTHING, newline_only=False)


def _alternatives(pattern: str, around: str, *, newline_only: bool) -> str:
    texts = []
    for alternative in _distribute(parse(pattern, newline_only=newline_only)):
        items = list(alternative)
        before = after = around
        while items and items[0] is START:
            items, before = items[1:], ""
        while items and items[-1] is END:
            items, after = items[:-1], ""
        texts.append(before + "".join(_text(item) for item in items) + after)
    return f"(?:{'|'.join(texts)})"


def _distribute(alternatives: Sequence[Sequence[Item]]) -> list[Sequence[Item]]:
    """Anchors in groups at either end brought to the ends of alternatives: `(^a|b)c`."""
    done: list[Sequence[Item]] = []
    waiting = list(reversed(alternatives))
    while waiting:
        items = waiting.pop()
        first, last = (items[0], items[-1]) if items else (None, None)
        if isinstance(first, Group) and not first.repeat and first.has_anchor:
            waiting += [[*inner, *items[1:]] for inner in reversed(first.alternatives)]
        elif isinstance(last, Group) and not last.repeat and last.has_anchor:
            waiting += [[*items[:-1], *inner] for inner in reversed(last.alternatives)]
        else:
            done.append(items)
            continue
        if len(done) + len(waiting) > len(alternatives) + MAX_ALTERNATIVES:
            raise GrammarError("pattern: too many alternatives with anchors", "pattern")
    return done


def _text(item: Item) -> str:
    if item is START or item is END:
        mark = "^" if item is START else "$"
        raise GrammarError(
            f"pattern: {mark} in the middle is not supported; it may stand at either end", "pattern"
        )
    if isinstance(item, Group):
        inner = "|".join("".join(_text(part) for part in each) for each in item.alternatives)
        return f"(?:{inner}){item.repeat}"
    return str(item)


def matches(rust: str, text: str) -> bool:
    """Whether the whole `text` matches, in time linear in its length."""
    matcher = _matcher(rust).deep_copy()
    data = text.encode()
    taken = matcher.try_consume_tokens(list(data)) if data else 0
    if matcher.is_error():
        raise GrammarError(f"pattern: {matcher.get_error()[:200]}", "pattern")
    return taken == len(data) and matcher.is_accepting()


@lru_cache(64)
def _matcher(rust: str) -> llguidance.LLMatcher:
    text = f"start: {terminal(rust)}\n"
    matcher = llguidance.LLMatcher(byte_vocabulary(), text, log_level=0, limits=_MATCH_LIMITS)
    if matcher.is_error():
        raise GrammarError(f"pattern: {matcher.get_error()[:200]}", "pattern")
    return matcher


def none_of(words: Sequence[str]) -> str:
    """Every text but `words`, as a pattern in Rust's syntax: along their common beginnings."""
    tree: dict[str, object] = {}
    for word in words:
        check_text(word, "a name")
        branch = tree
        for letter in word:
            branch = branch.setdefault(letter, {})  # type: ignore[assignment]
        branch[""] = None
    return _outside(tree, 0)


def _outside(tree: dict[str, object], depth: int) -> str:
    if depth > MAX_NAME:
        raise GrammarError(f"enum: a text of more than {MAX_NAME} letters is left out", "enum")
    letters = sorted(letter for letter in tree if letter)
    if not letters:
        return "(?s:.+)"
    other = "".join(rf"\x{{{ord(letter):x}}}" for letter in letters)
    free = f"[^{other}]"
    branches = [(no_nul(free) if {'"', "\\"}.intersection(letters) else free) + ANYTHING]
    branches += [
        rf"\x{{{ord(letter):x}}}{_outside(branch, depth + 1)}"
        for letter in letters
        if isinstance(branch := tree[letter], dict)
    ]
    return f"(?:{'|'.join(branches)}){'' if '' in tree else '?'}"
