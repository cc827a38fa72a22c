# SPDX-License-Identifier: Apache-2.0
"""Grammars that make a model call tools in its own form, as their schemas say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.json_schema import inline_json
from rtp_llm.text.grammar.lark import literal

# Keywords of a schema of arguments that has none, whatever else is empty.
_OF_EMPTY = frozenset(("type", "title", "description", "$schema", "$id"))


class Texts:
    """Literal texts as terms of a Lark rule; special tokens in them are written by their ids.

    A string of Lark never matches a special token, nor does a pattern.
    """

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self.special_ids = special_ids
        names = sorted(special_ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) or "(?!)")

    def __call__(self, text: str) -> str:
        terms: list[str] = []
        at = 0
        for found in self._pattern.finditer(text):
            if found.start() > at:
                terms.append(literal(text[at : found.start()]))
            terms.append(f"<[{self.special_ids[found.group()]}]>")
            at = found.end()
        if at < len(text):
            terms.append(literal(text[at:]))
        return " ".join(terms)

    def begins_special(self, text: str) -> bool:
        """Whether a text begins with a special token."""
        return self._pattern.match(text) is not None

    def rule_up_to(self, name: str, text: str, end: str) -> str:
        """A rule: the terminal `text` up to the first `end`, and that."""
        special = self._pattern.search(end)
        if special is None:
            return f"{name}[lazy]: {text} {literal(end)}\n"
        # A special token ends a terminal by itself: what is before it is of that terminal.
        before = literal(end[: special.start()]) if special.start() else ""
        terminal = f"{name.upper()}_TEXT"
        rest = self(end[special.start() :])
        return f"{terminal}: {text} {before}\n{name}: {terminal} {rest}\n"


Terms = Callable[[Tool, Texts], str]


@dataclass(frozen=True)
class Syntax:
    """Calls as a model writes them: `lead`, `trigger`, `open`, calls with `between`, `close`.

    ``call``: the terms of a Lark rule for one call of a tool; ``string_end``: what ends the texts
    that such terms name `string`. Where nothing is required, `trigger` identifies calls, and where
    that is empty, or besides, by `first`: the character that an answer of calls begins with.
    """

    call: Terms
    trigger: str = ""
    lead: str = ""
    open: str = ""
    between: str = ""
    close: str = ""
    first: str = ""
    string_end: str = ""
    rules: Callable[[Texts], str] | None = None
    """Further rules, which the terms of calls name."""

    def lark(self, tools: Sequence[Tool], choice: ToolChoice, texts: Texts) -> str:
        """The grammar of an answer."""
        again = f"({texts(self.between)} call)*" if choice.parallel else ""
        rules = [
            self._start(choice, texts),
            f"calls: {texts(self.open)} call {again} {texts(self.close)}\n",
            "call: " + " | ".join(f"call_{index}" for index in range(len(tools))) + "\n",
            *(f"call_{index}: {self.call(tool, texts)}\n" for index, tool in enumerate(tools)),
            "ANY: /(?s:.*)/\n",
        ]
        if self.string_end:
            rules.append(texts.rule_up_to("string", "ANY", self.string_end))
        if self.rules is not None:
            rules.append(self.rules(texts))
        return "".join(rules)

    def _start(self, choice: ToolChoice, texts: Texts) -> str:
        if choice.mode == "required":
            begin = texts(self.lead + self.trigger)
            return f"start: BLANK {begin} calls\nBLANK: /\\n{{0,2}}/\n"
        blank = "BLANK: /\\s{0,8}/\n"
        first = re.escape(self.first)
        text = f"TEXT: /\\s*([^\\s{first}](?s:.*))?/\n" if first else "TEXT: /(?s:.*)/\n"
        if not self.trigger:
            return f"start: BLANK calls BLANK | TEXT\n{blank}{text}"
        # A text has no special tokens, so one before the trigger is a part of it.
        begin = self.lead if texts.begins_special(self.lead) else ""
        free = texts.rule_up_to("free", "TEXT", begin + self.trigger)
        start = "(free calls)* TEXT" if choice.parallel else "TEXT | free calls BLANK"
        return f"start: {start}\n{blank}{text}{free}"


def enforced(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The tools with calls that a grammar enforces: if calls are required, or a tool is strict.

    Raises GrammarError where a call is required and none can be made.
    """
    if choice.names is not None:
        tools = [tool for tool in tools if tool.name in choice.names]
    if choice.mode == "required" and not tools:
        raise GrammarError("none of the tools that may be called is declared")
    if choice.mode == "none" or not (choice.mode == "required" or any(t.strict for t in tools)):
        return []
    return list(tools)


def json_call(arguments: str, before: str = "", after: str = "", name: str = "name") -> Terms:
    """A JSON object of a name, under the key `name`, and the arguments under theirs."""

    def terms(tool: Tool, texts: Texts) -> str:
        head = f'{before}{{"{name}": {quoted(tool.name)}, "{arguments}": '
        return f"{texts(head)} {json_arguments(tool)} {texts('}' + after)}"

    return terms


def named_json(before: str, after: str, index: bool = False) -> Terms:
    """The name, `before`, the arguments as JSON, `after`. ``index``: `:` and a number as well."""

    def terms(tool: Tool, texts: Texts) -> str:
        name = f"{texts(tool.name + ':')} /[0-9]{{1,3}}/" if index else texts(tool.name)
        return f"{name} {texts(before)} {json_arguments(tool)} {texts(after)}"

    return terms


def json_arguments(tool: Tool) -> str:
    """The arguments as a JSON object, a term of a Lark rule; of no parameters, an empty one."""
    schema = {"type": "object", **tool.parameters}
    if not any(value for keyword, value in schema.items() if keyword not in _OF_EMPTY):
        schema["additionalProperties"] = False
    try:
        return inline_json(schema, strict=tool.strict)
    except GrammarError as error:
        raise GrammarError(f"tool {tool.name!r}: {error}", error.keyword) from error


def quoted(text: str) -> str:
    """Return the text as a JSON string, quotes included."""
    return json.dumps(text, ensure_ascii=False)
