# SPDX-License-Identifier: Apache-2.0
"""Pieces of Lark text, the form in which llguidance takes grammars."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rtp_llm.request.constraints import Grammar
from rtp_llm.text.grammar.errors import GrammarError

MAX_BYTES = 256 * 1024
"""Of a schema, a pattern or a grammar, as it stands in the request."""


def literal(text: str) -> str:
    """The Lark string that matches exactly `text`."""
    check_text(text, "a literal")
    return json.dumps(text, ensure_ascii=False)


def lark_grammar(text: str) -> Grammar:
    """Return the grammar in llguidance's Lark; its first rule is `start`."""
    check_text(text, "the grammar")
    return Grammar(text=text)


def choice_grammar(choices: Sequence[str]) -> Grammar:
    """One of the texts, exactly."""
    if not choices:
        raise GrammarError("the list is empty", "choice")
    for choice in choices:
        if not isinstance(choice, str):
            raise GrammarError(f"choice: {choice!r} is not a string", "choice")
    alternatives = "\n     | ".join(literal(choice) for choice in dict.fromkeys(choices))
    return lark_grammar(f"start: {alternatives}\n")


def either_grammar(first: Grammar, second: Grammar, before_second: str = "") -> Grammar:
    """The union of two grammars in Lark; the terms `before_second` precede the second."""
    parts = {"first": first.text, "second": second.text}
    grammars = [{"name": name, "lark_grammar": text} for name, text in parts.items()]
    grammars.insert(0, {"lark_grammar": f"start: @first | {before_second} @second\n"})
    return Grammar(text=json.dumps({"grammars": grammars}, ensure_ascii=False))


def check_text(text: str, what: str, limit: int = MAX_BYTES) -> None:
    """Raise GrammarError for text that is too long or has lone surrogates."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise GrammarError(f"{what} has a lone surrogate, which is not valid text") from error
    if size > limit:
        raise GrammarError(f"{what} has {size} bytes; at most {limit} are taken")
