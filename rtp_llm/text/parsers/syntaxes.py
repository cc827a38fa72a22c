"""How each form writes calls, for grammars."""

from __future__ import annotations

from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.parsers.forms import CALL_ALIASES
from rtp_llm.text.parsers.tool_grammar import Syntax, json_call

_SYNTAXES = {
    "hermes": Syntax(
        "<tool_call>", json_call("\n", "arguments", "\n</tool_call>"), between="\n<tool_call>"
    ),
}


def syntax(form: str) -> Syntax:
    """Raises GrammarError for a form that no grammar is known for."""
    name = CALL_ALIASES.get(form, form)
    if name not in _SYNTAXES:
        raise GrammarError(f"calls in the form {form!r} cannot be enforced by a grammar")
    return _SYNTAXES[name]
