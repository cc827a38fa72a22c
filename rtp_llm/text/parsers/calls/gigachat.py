# SPDX-License-Identifier: Apache-2.0
"""GigaChat 3: a call is a message of another role, or follows a token of its own."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer
from rtp_llm.text.parsers.calls.json_calls import json_call
from rtp_llm.text.parsers.source import Malformed, Markers, Steps

_END, _ROLE, _TOKEN = "<|message_sep|>", "function call<|role_sep|>\n", "<|function_call|>"


@dataclass(frozen=True)
class GigaChatCalls:
    """`<|message_sep|>`, empty lines, `function call<|role_sep|>`, a line, `{"name": N, ...}`."""

    markers: tuple[str, ...] = (_END, _ROLE, _TOKEN)

    def read(self, answer: Answer) -> Steps[None]:
        triggers = Markers.of(_END, _ROLE, _TOKEN, *MESSAGE_ENDS)
        source = answer.source
        while True:
            trigger = yield from answer.text(triggers)
            try:
                if trigger == _END:
                    source.drop_last()
                    yield from source.spaces()
                    if not (yield from source.literal(_ROLE)):
                        continue
                yield from source.spaces()
                yield from json_call(answer)
            except Malformed:
                yield answer.give_up()
