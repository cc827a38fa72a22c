# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtp_llm.server.endpoint.server_sent_events import encode_events
from rtp_llm.server.generation.call_arguments import tool_input
from rtp_llm.server.generation.generation import Usage
from rtp_llm.server.protocols.anthropic.response_options import MessageResponseOptions
from rtp_llm.server.protocols.anthropic.writer import MessageWriter
from rtp_llm.server.turn.opaque_reasoning import unseal
from rtp_llm.testing.server.anthropic_events import add_up, read_events
from rtp_llm.testing.server.deltas import answers
from rtp_llm.text.parsers.deltas import (
    OutputDelta,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
)

FORM = MessageResponseOptions(model="demo")
USAGE = Usage(prompt_tokens=9, completion_tokens=7, cached_tokens=4, reasoning_tokens=3)
CALL: list[OutputDelta] = [
    ReasoningDelta("I should add."),
    TextDelta("\n\n"),
    ToolCallBegin(0, "add", "call_1"),
    ToolArguments(0, '{"a"'),
    ToolArguments(0, ": 1}"),
]


def stream(
    deltas: list[OutputDelta],
    cut: bool = False,
    stop: str | None = None,
    response_options: MessageResponseOptions = FORM,
) -> list[dict[str, Any]]:
    writer = MessageWriter(response_options)
    data = encode_events(writer.begin(USAGE))
    for delta in deltas:
        data += encode_events(writer.take([delta]))
    return read_events((data + encode_events(writer.finish(cut, stop, USAGE))).decode())


@settings(deadline=None)
@given(answers(), st.booleans(), st.booleans())
def test_any_deltas_make_a_stream_whose_sum_is_the_whole_message(
    deltas: list[OutputDelta], cut: bool, shown: bool
) -> None:
    response_options = MessageResponseOptions(model="demo", show_thinking=shown)
    message = add_up(stream(deltas, cut, response_options=response_options))
    whole = MessageWriter(response_options)
    whole.take(deltas)
    whole.finish(cut, None, USAGE)
    plain = msgspec.to_builtins(whole.message)
    for each in (message, plain):
        each.pop("id")
        for block in each["content"]:
            block.pop("id", None)
    assert message == plain


def test_a_call_after_a_thought() -> None:
    message = add_up(stream(CALL))
    reasoning_text, call = message["content"]
    assert reasoning_text["thinking"] == "I should add."
    assert call == {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}}
    assert message["stop_reason"] == "tool_use"
    assert message["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 3},
    }


def test_thinking_that_is_left_out_is_in_the_signature() -> None:
    events = stream(
        CALL, response_options=MessageResponseOptions(model="demo", show_thinking=False)
    )
    reasoning_text = add_up(events)["content"][0]
    assert reasoning_text["thinking"] == ""
    assert unseal(reasoning_text["signature"]) == "I should add."


@pytest.mark.parametrize(
    ("cut", "stop", "by_context", "reason"),
    [
        (False, None, False, "end_turn"),
        (True, None, False, "max_tokens"),
        (True, None, True, "model_context_window_exceeded"),
        (False, "END", True, "stop_sequence"),
    ],
)
def test_why_an_answer_ended(cut: bool, stop: str | None, by_context: bool, reason: str) -> None:
    response_options = MessageResponseOptions(model="demo", cut_by_context=by_context)
    message = add_up(stream([TextDelta("a")], cut, stop, response_options))
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, stop)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": 1, "b": "half', {"a": 1}),
        ("", {}),
        ("[1]", {}),
        ("{a}", {}),
    ],
)
def test_arguments_that_were_cut(text: str, read: dict[str, Any]) -> None:
    assert tool_input(text) == read
