"""GBNF, the EBNF of llama.cpp and xgrammar, as Lark.

GBNF has no lexer, and that of llguidance takes the longest lexeme: `("abc" | [a-z])*` would not
match "abx". So a grammar without recursion becomes one terminal, and in one with recursion every
lexeme is a single character.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rtp_llm.constraints import Grammar
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
from rtp_llm.text.grammar.pattern_parser import quoted

ROOT = "root"


def ebnf_grammar(text: str) -> Grammar:
    """GBNF (rules with `::=`, the first of them `root`) or Lark, told apart."""
    check_text(text, "the grammar")
    if not is_ebnf(text):
        return lark_grammar(text)
    rules = ebnf_rules(text)
    return Grammar(text="\n".join((f"start: {rules.term}", *rules.lines)) + "\n")


@dataclass(frozen=True)
class Rules:
    """Rules of Lark, and the term that is the whole grammar; `regular`: it is a terminal."""

    lines: list[str]
    term: str
    regular: bool


def ebnf_rules(text: str, prefix: str = "") -> Rules:
    """GBNF as rules whose names have `prefix` in them.

    Raises GrammarError with the line of what is not supported.
    """
    rules = parse(text)
    _check(rules)
    order = _callees_first(rules)
    regular = order is not None
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
        most = "" if term.most is None else term.most
        return f"({_written(term.term, names)}){{{term.least},{most}}}"
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
    ending: set[str] = set()
    while grown := {n for n, rule in rules.items() if n not in ending and _ends(rule, ending)}:
        ending |= grown
    if ROOT not in ending:
        raise GrammarError("the grammar matches no finite text", "grammar")


def _ends(term: Term, ending: set[str]) -> bool:
    """Whether some finite text matches, if those rules have one."""
    if isinstance(term, Reference):
        return term.rule in ending
    if isinstance(term, Repeat):
        return term.least == 0 or _ends(term.term, ending)
    if isinstance(term, Choice):
        return any(all(_ends(each, ending) for each in s) for s in term.sequences)
    return True


def _callees_first(rules: dict[str, Choice]) -> list[str] | None:
    """The rules that `root` needs, each behind those that it needs; None with recursion."""
    order: list[str] = []
    state = {ROOT: False}  # name: whether it is in the order already
    stack = [(ROOT, iter(_callees(rules[ROOT])))]
    while stack:
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
            return None
    return order


def _callees(rule: Choice) -> list[str]:
    return [term.rule for term in _terms(rule) if isinstance(term, Reference)]
