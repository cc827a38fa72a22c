"""Regular expressions as grammars."""

from __future__ import annotations

import llguidance

from rtp_llm.constraints import Grammar
from rtp_llm.text.grammar.lark import check_text


def regex_grammar(pattern: str) -> Grammar:
    """A text that the whole pattern matches."""
    check_text(pattern, "the pattern")
    return Grammar(text=f"start: /{llguidance.regex_to_lark(pattern)}/\n")
