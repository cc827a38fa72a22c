# SPDX-License-Identifier: Apache-2.0
"""Grammars that answers obey: from a request's schema, pattern, choice, grammar or tag.

Each function makes a `Grammar` in the form of llguidance or raises GrammarError, which names what
cannot be enforced. `check_grammar` then compiles it with the served tokenizer.
"""

from __future__ import annotations

from rtp_llm.text.grammar.check import check_grammar
from rtp_llm.text.grammar.ebnf import ebnf_grammar
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.json_schema import json_object_grammar, json_schema_grammar
from rtp_llm.text.grammar.lark import choice_grammar, either_grammar, lark_grammar
from rtp_llm.text.grammar.pattern import regex_grammar
from rtp_llm.text.grammar.structural_tag import structural_tag_grammar

__all__ = [
    "GrammarError",
    "check_grammar",
    "choice_grammar",
    "ebnf_grammar",
    "either_grammar",
    "json_object_grammar",
    "json_schema_grammar",
    "lark_grammar",
    "regex_grammar",
    "structural_tag_grammar",
]
