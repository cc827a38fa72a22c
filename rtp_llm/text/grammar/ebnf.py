"""GBNF, the EBNF of llama.cpp and xgrammar, as Lark."""

from __future__ import annotations

from llguidance import gbnf_to_lark

from rtp_llm.constraints import Grammar
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.lark import check_text, lark_grammar


def ebnf_grammar(text: str) -> Grammar:
    """GBNF (rules with `::=`, the first called `root`) or Lark, told apart."""
    check_text(text, "the grammar")
    try:
        return lark_grammar(gbnf_to_lark.any_to_lark(text))
    except Exception as error:
        raise GrammarError(f"the grammar is neither GBNF nor Lark: {error}") from error
