"""Grammars that make a model call tools in its own form, as their schemas say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rtp_llm.constraints import Grammar
from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.json_schema import inline_json
from rtp_llm.text.grammar.lark import lark_grammar, literal


class Texts:
    """Literal texts as terms of a Lark rule; special tokens in them are written by their ids.

    A string of Lark never matches a special token, nor does a pattern.
    """

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self._ids = special_ids
        names = sorted(special_ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) or "(?!)")

    def __call__(self, text: str) -> str:
        terms: list[str] = []
        at = 0
        for found in self._pattern.finditer(text):
            if found.start() > at:
                terms.append(literal(text[at : found.start()]))
            terms.append(f"<[{self._ids[found.group()]}]>")
            at = found.end()
        if at < len(text):
            terms.append(literal(text[at:]))
        return " ".join(terms)

    def behind_text(self, trigger: str) -> str:
        """The rule `free`: any text up to `trigger`, and that."""
        if trigger in self._ids:
            return f"free: TEXT <[{self._ids[trigger]}]>\n"
        return f"free[lazy]: TEXT {literal(trigger)}\n"


CallTerms = Callable[[Tool, Texts], str]


@dataclass(frozen=True)
class Syntax:
    """Calls as a model writes them: `trigger`, `open`, calls with `between`, `close`.

    ``call``: the terms of a Lark rule for one call of a tool.
    """

    trigger: str
    call: CallTerms
    open: str = ""
    between: str = ""
    close: str = ""

    def lark(self, tools: Sequence[Tool], choice: ToolChoice, texts: Texts) -> str:
        """The grammar of an answer."""
        calls = " | ".join(f"call_{index}" for index in range(len(tools)))
        again = f"({texts(self.between)} call)*" if choice.parallel else ""
        rules = f"calls: {texts(self.open)} call {again} {texts(self.close)}\ncall: {calls}\n"
        for index, tool in enumerate(tools):
            rules += f"call_{index}: {self.call(tool, texts)}\n"
        if choice.mode == "required":
            return f"start: BLANK {texts(self.trigger)} calls\nBLANK: /\\n{{0,2}}/\n{rules}"
        start = "(free calls)* TEXT" if choice.parallel else "TEXT | free calls BLANK"
        free = f"TEXT: /(?s:.*)/\nBLANK: /\\s{{0,8}}/\n{texts.behind_text(self.trigger)}"
        return f"start: {start}\n{free}{rules}"


def grammar_of(
    syntax: Syntax, tools: Sequence[Tool], choice: ToolChoice, special_ids: Mapping[str, int]
) -> Grammar | None:
    """The grammar of an answer with these tools; None where it may be anything.

    Calls are enforced where they are required, and where a strict tool may be called. Raises
    GrammarError for a strict tool whose schema cannot be enforced.
    """
    if choice.names is not None:
        tools = [tool for tool in tools if tool.name in choice.names]
    if choice.mode == "none" or (choice.mode == "auto" and not any(tool.strict for tool in tools)):
        return None
    if not tools:
        raise GrammarError("tool_choice: none of the tools that may be called is declared")
    return lark_grammar(syntax.lark(tools, choice, Texts(special_ids)))


def json_call(before: str, arguments: str, after: str) -> CallTerms:
    """`before`, a JSON object of a name and the arguments under that key, `after`."""

    def terms(tool: Tool, texts: Texts) -> str:
        head = f'{before}{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{arguments}": '
        return f"{texts(head)} {json_arguments(tool)} {texts('}' + after)}"

    return terms


def json_arguments(tool: Tool) -> str:
    """The arguments as a JSON object, a term of a Lark rule."""
    return inline_json({"type": "object", **tool.parameters}, strict=tool.strict)
