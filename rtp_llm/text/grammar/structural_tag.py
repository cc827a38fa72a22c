"""Structural tags: free text with constrained pieces behind triggers."""

from __future__ import annotations

from typing import Any

from rtp_llm.constraints import Grammar
from rtp_llm.text.grammar.errors import GrammarError


def structural_tag_grammar(tag: dict[str, Any]) -> Grammar:
    """The grammar of a structural tag, in vLLM's old form or in xgrammar's."""
    raise GrammarError(f"structural_tag: {', '.join(tag)} is not supported", "structural_tag")
