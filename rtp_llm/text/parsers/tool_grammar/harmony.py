# SPDX-License-Identifier: Apache-2.0
"""Grammars of answers on channels (gpt-oss), in which calls are messages to functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.parsers.calls.harmony import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, START
from rtp_llm.text.parsers.tool_grammar.terms import Texts, json_arguments

_NAME = re.compile(r"[^\s<]+")
# Text without a header, which no parser takes for the recipient of one.
_PLAIN = r"PLAIN: /[ \t\r\n]*([^ \t\r\nt](?s:.*)|t([^o](?s:.*))?|to([^=](?s:.*))?)?/"


class HarmonySyntax:
    """Messages on channels, following `<|start|>assistant`, which may be part of the prompt."""

    def lark(self, tools: Sequence[Tool], choice: ToolChoice, texts: Texts) -> str:
        """The grammar of an answer, or of what follows its analysis. Raises GrammarError."""
        _check_tokens(texts.special_ids)
        call_end, begun = texts(CALL), texts(f"{START}assistant")
        if choice.mode == "required":
            again = f"({call_end} begun call)*" if choice.parallel else ""
            start = f"start: begun? call {again} {call_end}\n"
        else:
            call = f" | call {call_end}" if choice.parallel else ""
            header = f"{texts(CHANNEL)} NAME (SPACE {texts(CONSTRAIN)} WORD)? {texts(MESSAGE)}"
            start = (
                "start: PLAIN | (PLAIN | begun)? (message begun?)* last\n"
                f"message: free {texts(END)}{call}\n"
                f"last: free | call {call_end}\n"
                f"free: {header} TEXT\n"
                'NAME: "analysis" | "commentary" | "final"\n'
                'SPACE: " "\n'
                r"WORD: /\w{1,20}/"
                f"\n{_PLAIN}\n"
                "TEXT: /(?s:.*)/\n"
            )
        return start + "".join(
            [
                f"begun: {begun}\n",
                "call: " + " | ".join(f"call_{index}" for index in range(len(tools))) + "\n",
                *(f"call_{index}: {_call(tool, texts)}\n" for index, tool in enumerate(tools)),
                f'form: {texts(CONSTRAIN)}? "json"\n',
            ]
        )

    def answer(self, texts: Texts) -> str:
        """The terms before an answer that is not a call."""
        _check_tokens(texts.special_ids)
        form = f'(" " {texts(CONSTRAIN)} "json")?'
        return f"({texts(f'{START}assistant')})? {texts(f'{CHANNEL}final')} {form} {texts(MESSAGE)}"


def _call(tool: Tool, texts: Texts) -> str:
    """The recipient is named in either part of the header."""
    if not _NAME.fullmatch(tool.name):
        raise GrammarError(f"{tool.name!r} cannot be the name of a function on a channel")
    to = f" to=functions.{tool.name}"
    channel = texts(f"{CHANNEL}commentary{to} ")
    recipient = f"{texts(to)} {texts(f'{CHANNEL}commentary ')}"
    return f"({channel} | {recipient}) form {texts(MESSAGE)} {json_arguments(tool)}"


def _check_tokens(special_ids: Mapping[str, int]) -> None:
    for token in (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL):
        if token not in special_ids:
            raise GrammarError(
                f"calls on channels cannot be enforced: the tokenizer has no special token {token}"
            )
