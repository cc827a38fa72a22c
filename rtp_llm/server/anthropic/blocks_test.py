from __future__ import annotations

from typing import Any

import msgspec

from rtp_llm.server.anthropic import protocol
from rtp_llm.server.anthropic.blocks import Blocks
from rtp_llm.server.anthropic.tools import tool_choice, usable_tools
from rtp_llm.server.opaque_reasoning import seal
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
    for block, thought in (
        ({"thinking": "aloud", "signature": "EqQB"}, "aloud"),
        ({"thinking": "", "signature": "EqQB"}, None),
        ({"thinking": "aloud"}, "aloud"),
    ):
        blocks = read(("assistant", [{"type": "thinking", **block}, text("Yes.")]))
        assert blocks.messages() == (Message("assistant", "Yes.", thought),)


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
