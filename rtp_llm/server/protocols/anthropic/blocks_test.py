# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rtp_llm.server.protocols.anthropic import protocol
from rtp_llm.server.protocols.anthropic.blocks import Blocks
from rtp_llm.server.protocols.anthropic.tools import tool_choice, usable_tools
from rtp_llm.server.turn.opaque_reasoning import seal
from rtp_llm.server.types.errors import ApiError
from rtp_llm.text.conversation import Message, Tool, ToolCall, ToolChoice


def read(*messages: tuple[str, Any], system: Any = None) -> Blocks:
    blocks = Blocks()
    if system is not None:
        blocks.read_system(system)
    plain = [{"role": role, "content": content} for role, content in messages]
    blocks.read(msgspec.convert(plain, list[protocol.InputMessage]))
    return blocks


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}


def test_the_first_turn_of_claude_code() -> None:
    billing = text("x-anthropic-billing-header: cc_version=2.1.330.ca2;")
    blocks = read(
        ("user", [text("<system-reminder>"), text("What is here?")]),
        ("system", [text("# Environment")]),
        system=[billing, text("You are an agent."), text("Work.")],
    )
    assert blocks.messages() == (
        Message("system", "You are an agent.\n\nWork.\n\n# Environment"),
        Message("user", "<system-reminder>\nWhat is here?"),
    )


def test_the_second_turn_of_claude_code() -> None:
    blocks = read(
        ("user", "What is here?"),
        (
            "assistant",
            [
                {"type": "thinking", "thinking": "", "signature": seal("I look.")},
                {"type": "redacted_thinking", "data": "?"},
                text("I look."),
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
                {"type": "tool_use", "id": "t2", "name": "Bash", "input": {}, "caller": {}},
            ],
        ),
        (
            "user",
            [
                {"type": "tool_result", "tool_use_id": "t1", "content": [text("a"), text("b")]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
                {"type": "tool_result", "tool_use_id": "t3"},
                text("Go on."),
            ],
        ),
        ("user", "Please."),
    )
    calls = (ToolCall("t1", "Bash", '{"command":"ls"}'), ToolCall("t2", "Bash", "{}"))
    assert blocks.messages() == (
        Message("user", "What is here?"),
        Message("assistant", "I look.", "I look.", calls),
        Message("tool", "a\nb", tool_call_id="t1", name="Bash"),
        Message("tool", "Error: no", tool_call_id="t2", name="Bash"),
        Message("tool", "", tool_call_id="t3"),
        Message("user", "Go on.\n\nPlease."),
    )


def test_thinking_of_other_servers_counts_if_it_can_be_read() -> None:
    for block, reasoning_text in (
        ({"thinking": "aloud", "signature": "EqQB"}, "aloud"),
        ({"thinking": "", "signature": "EqQB"}, None),
        ({"thinking": "aloud"}, "aloud"),
    ):
        blocks = read(("assistant", [{"type": "thinking", **block}, text("Yes.")]))
        assert blocks.messages() == (Message("assistant", "Yes.", reasoning_text),)


def test_tools_that_are_loaded_later() -> None:
    loaded = {"type": "tool_reference", "tool_name": "Later"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [loaded]}
    blocks = read(("user", [result]))
    assert "Later" in (blocks.messages()[0].content or "")
    schema = {"type": "object"}
    tools = [
        protocol.Tool(name="Now", description="d", input_schema=schema),
        protocol.Tool(name="Later", input_schema=schema, defer_loading=True, type="custom"),
        protocol.Tool(name="Never", input_schema=schema, defer_loading=True),
        protocol.Tool(name="web_search", type="web_search_20250305"),
    ]
    now, later = Tool("Now", "d", schema), Tool("Later", "", schema)
    assert usable_tools(tools, blocks.referenced) == ([now, later], ["tools.web_search_20250305"])
    assert usable_tools(tools, ()) == ([now], ["tools.web_search_20250305"])


def test_which_tools_may_be_called() -> None:
    tools = [Tool("f")]
    for given, choice in (
        ({"type": "auto"}, ToolChoice("auto")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "tool", "name": "f"}, ToolChoice("required", ("f",))),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            ToolChoice("required", parallel=False),
        ),
    ):
        assert tool_choice(msgspec.convert(given, protocol.ToolChoice), tools) == choice
    assert tool_choice(None, tools) == ToolChoice()


PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "It rains."}


def document(source: Any, **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}


def test_documents_and_search_results_are_text() -> None:
    found = {"type": "search_result", "source": "http://a", "title": "T", "content": [text("b")]}
    blocks = read(
        (
            "user",
            [
                document(PLAIN, title="Weather", context="of today", citations={"enabled": True}),
                document({"type": "content", "content": [text("a"), text("b")]}),
                document({"type": "content", "content": "c"}, title=None),
                found,
                text("Well?"),
            ],
        ),
        ("user", [{"type": "tool_result", "tool_use_id": "t", "content": [found, text("!")]}]),
    )
    shown = "<search_result>\n<title>T</title>\n<source>http://a</source>\nb\n</search_result>"
    assert [each.content for each in blocks.messages()] == [
        "<document>\n<title>Weather</title>\n<context>of today</context>\nIt rains.\n</document>\n"
        f"<document>\na\nb\n</document>\n<document>\nc\n</document>\n{shown}\nWell?",
        f"{shown}\n!",
    ]
    assert blocks.left_out.kinds == []


def test_what_is_no_text_is_left_out_of_results() -> None:
    parts = [IMAGE, text("a"), document(PDF), document({"type": "content", "content": [IMAGE]})]
    result = {"type": "tool_result", "tool_use_id": "t", "content": [*parts, {"type": "new"}]}
    blocks = read(("user", [result, text("Go on.")]))
    image = "[image left out: only text can be read here]"
    assert [each.content for each in blocks.messages()] == [
        f"{image}\na\n{image.replace('image', 'document')}\n<document>\n{image}\n</document>\n"
        + image.replace("image", "new"),
        "Go on.",
    ]
    assert blocks.left_out.kinds == ["image", "document", "image", "new"]
    strict = Blocks(lenient_media=False)
    with pytest.raises(ApiError, match="--lenient-media is off") as error:
        strict.read([protocol.InputMessage(role="user", content=[result])])
    assert error.value.param == "messages[0].content[0].content[0]"


@pytest.mark.parametrize(
    ("block", "param"),
    [
        (IMAGE, ""),
        (document(PDF), ""),
        (document({"type": "url", "url": "http://a"}), ""),
        (document({"type": "content", "content": [IMAGE]}), ".source.content[0]"),
        (document({"type": "text"}), ".source.data"),
        (document("a"), ".source"),
        ({"type": ["text"]}, ""),
        ({"type": "document"}, ".source"),
        ({"type": "search_result", "title": "T", "content": []}, ".source"),
    ],
)
def test_a_message_has_text_only(block: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        read(("user", [block]))
    assert (error.value.status, error.value.param) == (400, f"messages[0].content[0]{param}")
    with pytest.raises(ApiError):
        read(("assistant", [block]))
