"""GBNF, the EBNF of llama.cpp and xgrammar, as Lark.

GBNF has no lexer, and that of llguidance takes the longest lexeme: `("abc" | [a-z])*` would not
match "abx". So a grammar without recursion becomes one terminal, and in one with recursion every
lexeme is a character out of one of several sets that have none in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

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

MAX_SETS = 1000
ROOT = "root"


def ebnf_grammar(text: str) -> Grammar:
    """GBNF (rules with `::=`, the first of them `root`) or Lark, told apart."""
    check_text(text, "the grammar")
    return lark_grammar(ebnf_lark(text) if is_ebnf(text) else text)


def ebnf_lark(text: str) -> str:
    """GBNF as Lark; GrammarError with the line of what is not supported."""
    rules = parse(text)
    _check(rules)
    order = _callees_first(rules)
    return _of_rules(rules) if order is None else _of_terminals(rules, order)


def _of_terminals(rules: dict[str, Choice], order: list[str]) -> str:
    names = {name: f"R{index}" for index, name in enumerate(order)}
    lines = [f"start: {names[ROOT]}"]
    for name in order:
        lines.append(f"{names[name]}: {_written(rules[name], _class, names)}")
    return "\n".join(lines) + "\n"


def _of_rules(rules: dict[str, Choice]) -> str:
    names = {name: f"r{index}" for index, name in enumerate(rules)}
    names[ROOT] = "start"
    sets = _sets(rules)
    atoms = _atoms(sets)
    terms = {
        ranges: f"({' | '.join(f'C{n}' for n, within in enumerate(atoms) if within >> bit & 1)})"
        for bit, ranges in enumerate(sets)
    }
    lines = [f"{names[name]}: {_written(rules[name], terms.__getitem__, names)}" for name in rules]
    lines += [f"C{n}: {_class(tuple(ranges))}" for n, ranges in enumerate(atoms.values())]
    return "\n".join(lines) + "\n"


def _written(term: Term, characters: Callable[[Ranges], str], names: dict[str, str]) -> str:
    if isinstance(term, Characters):
        return characters(term.ranges)
    if isinstance(term, Reference):
        return names[term.rule]
    if isinstance(term, Repeat):
        most = "" if term.most is None else term.most
        return f"({_written(term.term, characters, names)}){{{term.least},{most}}}"
    return " | ".join(
        "(" + " ".join(_written(each, characters, names) for each in sequence) + ")"
        if sequence
        else '""'
        for sequence in term.sequences
    ).join("()")


def _class(ranges: Ranges) -> str:
    parts = (
        quoted(first) if first == last else f"{quoted(first)}-{quoted(last)}"
        for first, last in ranges
    )
    return f"/[{''.join(parts)}]/"


def _atoms(sets: list[Ranges]) -> dict[int, list[tuple[int, int]]]:
    """Ranges that no set cuts, by the sets that have them (a bit each, in their order)."""
    changes: dict[int, int] = {}
    for bit, ranges in enumerate(sets):
        for first, last in ranges:
            for place in (first, last + 1):
                changes[place] = changes.get(place, 0) ^ (1 << bit)
    found: dict[int, list[tuple[int, int]]] = {}
    within = 0
    for start, after in pairwise(sorted(changes)):
        within ^= changes[start]
        if within:
            found.setdefault(within, []).append((start, after - 1))
    return found


def _sets(rules: dict[str, Choice]) -> list[Ranges]:
    sets = {
        term.ranges: None
        for rule in rules.values()
        for term in _terms(rule)
        if isinstance(term, Characters)
    }
    if len(sets) > MAX_SETS:
        raise GrammarError(f"the grammar has more than {MAX_SETS} different characters and classes")
    return list(sets)


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
