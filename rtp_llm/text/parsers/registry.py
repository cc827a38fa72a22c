# SPDX-License-Identifier: Apache-2.0
"""Parsers, grammars and marks of the forms that are known, by the names of flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rtp_llm.request.constraints import Grammar
from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.parsers import formats
from rtp_llm.text.parsers.calls.harmony import CHANNEL, END, MESSAGE, Harmony
from rtp_llm.text.parsers.detection import Detected, detect, detect_reasoning
from rtp_llm.text.parsers.make import make_parser
from rtp_llm.text.parsers.spec import ParserSpec
from rtp_llm.text.parsers.tool_grammar import syntaxes, terms

__all__ = [
    "REASONING_FORMS",
    "TOOL_CALL_FORMS",
    "Detected",
    "call_or_answer",
    "detect",
    "detect_reasoning",
    "enforces_calls",
    "make_parser",
    "reads_channels",
    "reasoning_is_open",
    "special_texts",
    "thinking_tags",
    "tool_grammar",
]

TOOL_CALL_FORMS = (*formats.CALLS, *formats.CALL_ALIASES)
REASONING_FORMS = (*formats.REASONING, *formats.REASONING_ALIASES)

# A turn begins or ends here: no reasoning continues past it.
_TURN = re.compile(
    r"<[|｜][^<>|｜\s]{1,40}[|｜]>|<\|turn>|<turn\|>|\[/?INST\]|</?s>|<(?:start|end)_of_turn>|\]~b?\]|\[e~\["
)

_ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
# Some markers have several tokens, or one within.
_TOKENS = re.compile(r"<\|[^<>|]+\|?>|｜DSML｜|\]<\]minimax\[>\[")


def reads_channels(form: str) -> bool:
    """Whether a form of calls or reasoning is messages on channels, one form for both."""
    return formats.is_harmony(form)


def thinking_tags(reasoning: str, *, before_calls: bool = False) -> tuple[str, str]:
    """What begins and what ends the reasoning, as text of the model's tokens.

    An empty beginning: whatever the answer begins with is reasoning, up to the end.
    ``before_calls``: a call may follow it, and its header is not the end.
    """
    if before_calls and formats.is_harmony(reasoning):
        return _ANALYSIS, END
    form = formats.reasoning(reasoning)
    return form.begin, form.end


def reasoning_is_open(prompt: str, reasoning: str) -> bool:
    """Whether a rendered prompt ends inside of reasoning: a tag is open in its last turn."""
    form = formats.reasoning(reasoning)
    begin, end = form.begin, form.end
    if formats.is_harmony(reasoning):
        begin, end = _ANALYSIS, END
    opened = prompt.rfind(begin)
    if opened < 0 or prompt.rfind(end) > opened:
        return False
    return _TURN.search(prompt, opened + len(begin)) is None


def special_texts(spec: ParserSpec) -> frozenset[str]:
    """Texts that the parser has to see, even where a token for them is special.

    Other special tokens may be left out of the text that it gets.
    """
    texts: set[str] = set()
    if spec.tool_calls is not None:
        texts.update(formats.calls(spec.tool_calls).markers)
    if spec.reasoning is not None:
        texts.update(thinking_tags(spec.reasoning))
    if formats.is_harmony(spec.tool_calls) or formats.is_harmony(spec.reasoning):
        texts.update(Harmony().markers)
    tokens = (token for text in texts for token in _TOKENS.findall(text))
    return frozenset(texts.union(tokens) - {""})


def tool_grammar(
    form: str,
    tools: Sequence[Tool],
    choice: ToolChoice,
    special_ids: Mapping[str, int] = MappingProxyType({}),
) -> Grammar | None:
    """The grammar of an answer that calls tools in this form; None: nothing to enforce.

    Calls are enforced where they are required, and where a strict tool may be called.
    ``special_ids``: the ids of the tokenizer's special tokens, by their text. Raises GrammarError
    for what the form cannot enforce; compiling the grammar reports what JSON schemas cannot.
    """
    return syntaxes.tool_grammar(form, tools, choice, special_ids)


def enforces_calls(tools: Sequence[Tool], choice: ToolChoice) -> bool:
    """Whether `tool_grammar` gives one; raises GrammarError where a call cannot be made."""
    return bool(terms.enforced(tools, choice))


def call_or_answer(
    form: str,
    calls: Grammar,
    answer: Grammar,
    special_ids: Mapping[str, int] = MappingProxyType({}),
) -> Grammar:
    """The grammar of calls in this form, or else of an answer that obeys ``answer``."""
    return syntaxes.call_or_answer(form, calls, answer, special_ids)
