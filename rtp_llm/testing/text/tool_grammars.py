# SPDX-License-Identifier: Apache-2.0
"""Grammars of tool calls, and texts of calls in the tokens that a model writes them in."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from rtp_llm.request.constraints import Grammar
from rtp_llm.testing.text.matching import ByteVocabulary, matcher
from rtp_llm.testing.text.writing import WRITERS, Call, format_of
from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.parsers.deltas import OutputDelta, ToolArguments, ToolCallBegin
from rtp_llm.text.parsers.formats import CALLS
from rtp_llm.text.parsers.registry import tool_grammar

WRITTEN = [writer for writer in WRITERS if writer != "llama3_json (tagged)"]
REQUIRED = ToolChoice("required")
ADD = Tool(
    "add",
    parameters={
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 0},
            "unit": {"type": "string", "enum": ["cm", "in <b>"]},
            "label": {"type": "string"},
        },
        "required": ["a"],
        "additionalProperties": False,
    },
    strict=True,
)
NOW = Tool("now", parameters={"type": "object", "properties": {}, "additionalProperties": False})


def specials_of(writer: str) -> tuple[str, ...]:
    """Tokens that are special in the family's vocabulary; the first ends its messages."""
    markers = "".join(CALLS[format_of(writer)].markers)
    found = re.findall(
        r"｜DSML｜|<[|｜][^<>\s]+?[|｜]>|<\|\w+>|<\w+\|>|\[[A-Z_]+\]|\]<\]minimax\[>\[|<[/\w:]+>",
        markers,
    )
    special = dict.fromkeys(["<eos>", *found])
    if writer == "mistral (array)":
        del special["[ARGS]"]
    if writer == "gigachat3":
        del special["<|function_call|>"]
    if writer == "hy_v3":
        special = {each: None for each in special if ":opensource" not in each}
    return tuple(special)


# Within a special token: it is written in ordinary ones. No test draws this character.
ORDINARY = "\x7f"


class Grammars:
    """Grammars of a family, and texts in its tokens; `more` of those are special."""

    def __init__(self, writer: str, more: Sequence[str] = ()) -> None:
        self._form = format_of(writer)
        self.specials = (*specials_of(writer), *more)
        self._ids = {text: 256 + index for index, text in enumerate(self.specials)}
        self._vocabulary = ByteVocabulary(self.specials)

    def make(self, tools: Sequence[Tool], choice: ToolChoice = REQUIRED) -> Grammar:
        grammar = tool_grammar(self._form, tools, choice, self._ids)
        assert grammar is not None
        return grammar

    def accepts(self, grammar: Grammar, text: str) -> bool:
        """Whether a text is accepted, in special tokens except where `spell_out` said otherwise."""
        made = matcher(grammar, self._vocabulary)
        ids = self.ids_of(text)
        taken = made.try_consume_tokens(ids)
        assert not made.is_error(), made.get_error()
        return taken == len(ids) and made.is_accepting()

    def ids_of(self, text: str) -> list[int]:
        ids: list[int] = []
        for chunk in re.split(f"({'|'.join(map(re.escape, self.specials))})", text):
            plain = chunk.replace(ORDINARY, "").encode()
            ids.extend([self._ids[chunk]] if chunk in self._ids else plain)
        return ids

    def spell_out(self, value: Any) -> Any:
        """The value with special tokens in its strings marked as written in ordinary tokens.

        That is how a model writes such text where it stands for itself.
        """
        if isinstance(value, str):
            for special in self.specials:
                value = value.replace(special, special[0] + ORDINARY + special[1:])
            return value
        if isinstance(value, list):
            return [self.spell_out(item) for item in value]
        if isinstance(value, dict):
            return {key: self.spell_out(item) for key, item in value.items()}
        return value


def calls_of(deltas: Sequence[OutputDelta]) -> list[Call]:
    names = [delta.name for delta in deltas if isinstance(delta, ToolCallBegin)]
    texts = [""] * len(names)
    for delta in deltas:
        if isinstance(delta, ToolArguments):
            texts[delta.index] += delta.text
    return [(name, json.loads(text)) for name, text in zip(names, texts, strict=True)]
