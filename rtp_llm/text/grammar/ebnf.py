# SPDX-License-Identifier: Apache-2.0
"""GBNF, the EBNF of llama.cpp and xgrammar, as Lark.

GBNF has no lexer, and llguidance's lexer takes the longest lexeme: `("abc" | [a-z])*` would not
match "abx". So a grammar without recursion becomes one terminal, and in one with recursion every
lexeme is a single character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rtp_llm.request.constraints import Grammar
from rtp_llm.text.grammar.ebnf_parser import (
    Characters,
    Choice,
    Ranges,
    Reference,
    Repeat,
    Term,
    is_ebnf,
    parse,
)
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.lark import check_text, lark_grammar
from rtp_llm.text.grammar.pattern_parser import MAX_SIZE, quoted

ROOT = "root"
MAX_CHAIN = 400
"""Maximum depth of nested rule references, which the library follows on its thread's stack."""


def ebnf_grammar(text: str) -> Grammar:
    """The grammar of a text in GBNF (rules with `::=`, starting from `root`) or Lark.

    Raises GrammarError for syntax that is not supported.
    """
    check_text(text, "the grammar")
    if not is_ebnf(text):
        return lark_grammar(text)
    rules = ebnf_rules(text)
    return Grammar(text="\n".join((f"start: {rules.term}", *rules.lines)) + "\n")


@dataclass(frozen=True)
class Rules:
    """Lark rules and the term for the whole grammar; `regular`: the term is a terminal."""

    lines: list[str]
    term: str
    regular: bool


def ebnf_rules(text: str, prefix: str = "") -> Rules:
    """Translate GBNF to Lark rules, with `prefix` in their names.

    Raises GrammarError naming the line of anything that is not supported.
    """
    rules = parse(text)
    _check(rules)
    order = _callees_first(rules)
    regular = order is not None
    _check_repeats(rules, order or ())
    letter = "R" if regular else "r"
    names = {name: f"{letter}{prefix}{index}" for index, name in enumerate(order or rules)}
    lines = [f"{names[name]}: {_written(rules[name], names)}" for name in names]
    return Rules(lines, names[ROOT], regular)


def _written(term: Term, names: dict[str, str]) -> str:
    if isinstance(term, Characters):
        return _class(term.ranges)
    if isinstance(term, Reference):
        return names[term.rule]
    if isinstance(term, Repeat):
        maximum = "" if term.maximum is None else term.maximum
        return f"({_written(term.term, names)}){{{term.minimum},{maximum}}}"
    return " | ".join(
        "(" + " ".join(_written(each, names) for each in sequence) + ")" if sequence else '""'
        for sequence in term.sequences
    ).join("()")


def _class(ranges: Ranges) -> str:
    parts = (
        quoted(first) if first == last else f"{quoted(first)}-{quoted(last)}"
        for first, last in ranges
    )
    return f"/[{''.join(parts)}]/"


def _terms(term: Term) -> Iterator[Term]:
    yield term
    if isinstance(term, Repeat):
        yield from _terms(term.term)
    elif isinstance(term, Choice):
        for sequence in term.sequences:
            for each in sequence:
                yield from _terms(each)


def _check(rules: dict[str, Choice]) -> None:
    if ROOT not in rules:
        raise GrammarError("the grammar has no rule `root`", "grammar")
    for name, rule in rules.items():
        for term in _terms(rule):
            if isinstance(term, Reference) and term.rule not in rules:
                raise GrammarError(
                    f"the rule {name} needs {term.rule}, which is missing", "grammar"
                )
    if ROOT not in _ending(rules):
        raise GrammarError("the grammar matches no finite text", "grammar")


def _ending(rules: dict[str, Choice]) -> set[str]:
    """The rules that match some finite text."""
    callers: dict[str, list[str]] = {}
    for name, rule in rules.items():
        for callee in set(_callees(rule)):
            callers.setdefault(callee, []).append(name)
    ending: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in ending and _ends(rules[name], ending):
            ending.add(name)
            waiting += callers.get(name, ())
    return ending


def _check_repeats(rules: dict[str, Choice], order: Sequence[str]) -> None:
    """Refuse repetitions that would explode; `order`: callees first, None with recursion."""
    counts: dict[str, int] = {}
    for name in order or rules:
        counts[name] = count = _count(rules[name], counts)
        if count > MAX_SIZE:
            raise GrammarError(
                f"the rule {name}: repetitions in each other come to {count}; at most {MAX_SIZE} "
                "are taken",
                "grammar",
            )


def _count(term: Term, counts: dict[str, int]) -> int:
    """The largest product of the counts of nested repetitions."""
    if isinstance(term, Reference):
        return counts.get(term.rule, 1)
    if isinstance(term, Repeat):
        return max(1, term.maximum or term.minimum) * _count(term.term, counts)
    if isinstance(term, Choice):
        return max((_count(each, counts) for s in term.sequences for each in s), default=1)
    return 1


def _ends(term: Term, ending: set[str]) -> bool:
    """Whether `term` matches some finite text, given that the rules in `ending` do."""
    if isinstance(term, Reference):
        return term.rule in ending
    if isinstance(term, Repeat):
        return term.minimum == 0 or _ends(term.term, ending)
    if isinstance(term, Choice):
        return any(all(_ends(each, ending) for each in s) for s in term.sequences)
    return True


def _callees_first(rules: dict[str, Choice]) -> list[str] | None:
    """The rules reachable from `root`, each after the rules it uses; None if there is recursion.

    Raises GrammarError if references are nested more than MAX_CHAIN deep.
    """
    order: list[str] = []
    recursive = False
    state = {ROOT: False}  # name: whether it is in the order already
    stack = [(ROOT, iter(_callees(rules[ROOT])))]
    while stack:
        if len(stack) > MAX_CHAIN:
            raise GrammarError(f"rules need each other more than {MAX_CHAIN} deep", "grammar")
        name, callees = stack[-1]
        callee = next(callees, None)
        if callee is None:
            stack.pop()
            state[name] = True
            order.append(name)
        elif callee not in state:
            state[callee] = False
            stack.append((callee, iter(_callees(rules[callee]))))
        elif not state[callee]:
            recursive = True
    return None if recursive else order


def _callees(rule: Choice) -> list[str]:
    return [term.rule for term in _terms(rule) if isinstance(term, Reference)]
