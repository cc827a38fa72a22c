# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from rtp_llm.server.endpoint.server_sent_events import encode_events
from rtp_llm.server.generation.generation import Usage
from rtp_llm.server.protocols.responses.response_options import ResponseOptions
from rtp_llm.server.protocols.responses.writer import ResponseWriter
from rtp_llm.server.turn.opaque_reasoning import unseal
from rtp_llm.server.types.errors import unavailable
from rtp_llm.testing.server.deltas import answers
from rtp_llm.testing.server.responses_events import add_up, read_events
from rtp_llm.text.parsers.deltas import (
    OutputDelta,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
)

FORM = ResponseOptions(model="demo", namespaces={"ns.g": ("ns", "g")})
USAGE = Usage(prompt_tokens=9, completion_tokens=7, cached_tokens=4, reasoning_tokens=3)
CALL: list[OutputDelta] = [
    ReasoningDelta("I should"),
    ReasoningDelta(" add."),
    TextDelta("\n\n"),
    ToolCallBegin(0, "ns.g", "call_1"),
    ToolArguments(0, '{"a"'),
    ToolArguments(0, ": 1}"),
]


def stream(
    deltas: list[OutputDelta], cut: bool = False, response_options: ResponseOptions = FORM
) -> list[dict[str, Any]]:
    writer = ResponseWriter(response_options)
    data = encode_events(writer.begin())
    for delta in deltas:
        data += encode_events(writer.take([delta]))
    return read_events((data + encode_events(writer.finish(cut, USAGE))).decode())


@settings(deadline=None)
@given(answers(), st.booleans())
def test_any_deltas_make_a_stream_whose_sum_is_the_whole_response(
    deltas: list[OutputDelta], cut: bool
) -> None:
    response = add_up(stream(deltas, cut))
    whole = ResponseWriter(FORM)
    whole.take(deltas)
    whole.finish(cut, USAGE)
    plain = msgspec.to_builtins(whole.response)
    names = ("type", "role", "content", "name", "arguments", "status", "summary", "namespace")
    seen = [
        [{name: item.get(name) for name in names} for item in each["output"]]
        for each in (response, plain)
    ]
    assert seen[0] == seen[1]
    assert response["status"] == plain["status"] == ("incomplete" if cut else "completed")
    statuses = [item["status"] for item in response["output"]]
    assert statuses == ["completed"] * (len(statuses) - 1) + (
        ["incomplete" if cut else "completed"] if statuses else []
    )


@settings(deadline=None)
@given(answers())
def test_nothing_is_lost_but_white_space_between(deltas: list[OutputDelta]) -> None:
    output = add_up(stream(deltas))["output"]
    texts = [i["content"][0]["text"] for i in output if i["type"] == "message"]
    assert "".join("".join(texts).split()) == "".join(
        "".join(d.text for d in deltas if isinstance(d, TextDelta)).split()
    )
    calls = [i for i in output if i["type"] == "function_call"]
    assert len(calls) == sum(isinstance(d, ToolCallBegin) for d in deltas)
    assert "".join(i["arguments"] for i in calls) == "".join(
        d.text for d in deltas if isinstance(d, ToolArguments)
    )


def test_a_call_after_a_thought() -> None:
    response = add_up(stream(CALL))
    reasoning_text, call = response["output"]
    assert reasoning_text["content"] == [{"type": "reasoning_text", "text": "I should add."}]
    assert "encrypted_content" not in reasoning_text
    assert (call["namespace"], call["name"], call["call_id"]) == ("ns", "g", "call_1")
    assert call["arguments"] == '{"a": 1}'
    assert response["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 16,
    }


def test_what_was_thought_can_be_sent_back_unread() -> None:
    response_options = ResponseOptions(model="demo", seal_reasoning=True)
    reasoning_text = add_up(stream(CALL, response_options=response_options))["output"][0]
    assert unseal(reasoning_text["encrypted_content"]) == "I should add."
    assert unseal("gAAAAA of another server") is None
    assert unseal("rtp-llm-1:?") is None


def test_an_answer_that_is_cut_says_where() -> None:
    response = add_up(stream([TextDelta("a "), TextDelta("house")], cut=True))
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["completed_at"] is None


def test_an_answer_that_fails_ends_what_it_began() -> None:
    writer = ResponseWriter(FORM)
    data = encode_events(writer.begin()) + encode_events(writer.take([TextDelta("a")]))
    data += encode_events(writer.fail(unavailable("The engine has stopped.", "dead"), USAGE))
    response = add_up(read_events(data.decode()))
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "The engine has stopped."}


def test_white_space_alone_is_an_answer() -> None:
    assert add_up(stream([TextDelta(" ")]))["output"][0]["content"][0]["text"] == " "
    assert add_up(stream([]))["output"] == []
