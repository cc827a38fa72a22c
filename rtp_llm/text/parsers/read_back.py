# SPDX-License-Identifier: Apache-2.0
"""Reads the calls that a chat template writes, to see which form they have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtp_llm.text.chat_template import ChatTemplate, ChatTemplateError
from rtp_llm.text.conversation import Message, Tool, ToolCall
from rtp_llm.text.parsers.deltas import TextDelta, ToolArguments, ToolCallBegin
from rtp_llm.text.parsers.formats import is_harmony
from rtp_llm.text.parsers.make import make_parser
from rtp_llm.text.parsers.spec import ParserSpec
from rtp_llm.text.template_messages import template_messages, template_tools

_NAME, _SAID = "get_weather", "said before"
_TOOL = Tool(
    _NAME,
    "The weather of a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Its name."},
            "days": {"type": "integer", "description": "How many."},
        },
        "required": ["city"],
    },
)
# Some templates write no quotes around strings, though they instruct models to.
_ARGUMENTS: tuple[dict[str, Any], ...] = ({"city": "Paris", "days": 3}, {"days": 3})


@dataclass(frozen=True)
class Written:
    """One call as a template writes it: where an answer may begin in that, and its arguments."""

    answers: tuple[str, ...]
    arguments: Mapping[str, Any]

    def read_by(self, form: str, reasoning: str | None) -> bool | None:
        """Whether a form reads the call: True; False if text is left over; None if it does not."""
        found = None
        for text in self.answers:
            match self._read(text, form, reasoning):
                case "":
                    return True
                case str():
                    found = False
        return found

    def _read(self, text: str, form: str, reasoning: str | None) -> str | None:
        """The text left over next to the call; None: the call is not found."""
        reasoning = None if is_harmony(reasoning) else reasoning
        parser = make_parser(ParserSpec(form, reasoning, tools=(_TOOL,)))
        names, arguments, rest = [], "", ""
        for delta in [*parser.feed(text), *parser.finish()]:
            match delta:
                case ToolCallBegin(_, name):
                    names.append(name)
                case ToolArguments(_, more):
                    arguments += more
                case TextDelta(more):
                    rest += more
        try:
            is_right = names == [_NAME] and json.loads(arguments) == self.arguments
        except ValueError:
            return None
        return rest.strip() if is_right else None


def written_calls(template: ChatTemplate) -> list[Written]:
    """Calls as the template writes them; empty: it refuses them, or does not show them."""
    return [call for each in _ARGUMENTS if (call := _written(template, each)) is not None]


def answers(template: ChatTemplate, answer: Message, tools: Sequence[Tool]) -> tuple[str, ...]:
    """An answer with calls as the template writes it in a conversation, with several beginnings.

    It is not known how much of it the prompt has already. Raises ChatTemplateError.
    """

    def render(*messages: Message, prompt: bool = False) -> str:
        shown = template_messages([Message("user", "Hi"), *messages])
        declared = template_tools(tools)
        return template.render(shown, add_generation_prompt=prompt, tools=declared)

    whole, history = render(answer), render()
    try:
        prompt = render(prompt=True)
        before, _, after = render(Message("assistant", _SAID)).rpartition(_SAID)
    except ChatTemplateError:
        prompt = before = after = ""
    starts = {len(each) for each in (prompt, before) if each and whole.startswith(each)}
    starts |= {_line(whole, _common(each, whole)) for each in (prompt, before) if each}
    starts.add(_common(history, whole))
    end = len(whole) - len(after) if after and whole.endswith(after) else len(whole)
    return tuple(whole[start:end] for start in sorted(starts))


def _written(template: ChatTemplate, arguments: Mapping[str, Any]) -> Written | None:
    call = ToolCall("call00000", _NAME, json.dumps(arguments))
    try:
        found = answers(template, Message("assistant", None, None, (call,)), [_TOOL])
    except ChatTemplateError:
        return None
    shown = min(found, key=len)
    return Written(found, arguments) if _NAME in shown and "days" in shown else None


def _common(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


def _line(text: str, end: int) -> int:
    """Where the last line, or what follows the last tag, begins before `end`."""
    return max(text.rfind("\n", 0, end), text.rfind(">", 0, end), text.rfind("]", 0, end)) + 1
