# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.server.protocols.responses.items import Items
from rtp_llm.server.protocols.responses.tools import Tools
from rtp_llm.server.turn.opaque_reasoning import seal
from rtp_llm.server.types.errors import ApiError
from rtp_llm.text.conversation import Message, ToolCall, ToolChoice


def read(*items: dict[str, Any], stored: dict[str, dict[str, Any]] | None = None) -> Items:
    made = Items(stored or {})
    made.read(items, "input")
    return made


def said(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    parts = [{"type": kind, "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "msg_1", "role": role, "content": parts}


def test_the_first_turn_of_codex() -> None:
    items = read(
        said("developer", "You code."),
        said("developer", "Skills.", "Permissions."),
        said("user", "<environment_context>"),
        said("user", "What is here?"),
    )
    assert items.messages() == (
        Message("system", "You code.\n\nSkills.\nPermissions."),
        Message("user", "<environment_context>\n\nWhat is here?"),
    )


def test_the_second_turn_of_codex() -> None:
    items = read(
        said("user", "What is here?"),
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "I look."}],
            "encrypted_content": None,
        },
        said("assistant", "I look."),
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "call_1"},
        {"type": "function_call", "name": "g", "namespace": "n", "arguments": "", "call_id": "c2"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "text", "text": ""}]},
        said("assistant", "There is a.txt."),
        said("system", "Be short."),
    )
    calls = (ToolCall("call_1", "f", "{}"), ToolCall("c2", "n.g", ""))
    assert items.messages() == (
        Message("system", "Be short."),
        Message("user", "What is here?"),
        Message("assistant", "I look.", "I look.", calls),
        Message("tool", "a.txt", tool_call_id="call_1", name="f"),
        Message("tool", "", tool_call_id="c2", name="n.g"),
        Message("assistant", "There is a.txt."),
    )


def test_reasoning_comes_from_the_first_place_that_has_some() -> None:
    sealed, summary = seal("in secret"), [{"type": "summary_text", "text": "in short"}]
    for item, text in (
        ({"encrypted_content": sealed, "summary": summary}, "in secret"),
        ({"encrypted_content": "of another server", "summary": summary}, "in short"),
        ({"content": [{"text": "aloud"}], "encrypted_content": sealed}, "aloud"),
    ):
        items = read({"type": "reasoning", **item})
        assert items.messages() == (Message("assistant", reasoning=text),)
    assert read({"type": "reasoning", "summary": []}).messages() == ()


def test_calls_of_custom_tools_and_what_is_not_known() -> None:
    items = read(
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "b"'},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        {"type": "local_shell_call", "id": "x", "action": {}},
        {"type": "web_search_call", "id": "y"},
        {"type": "item_reference", "id": "msg_9"},
        stored={"msg_9": said("assistant", "As stored.")},
    )
    call = ToolCall("c", "patch", '{"input":"a \\"b\\""}')
    assert items.messages() == (
        Message("assistant", tool_calls=(call,)),
        Message("tool", "done", tool_call_id="c", name="patch"),
        Message("assistant", "As stored."),
    )
    assert items.skipped == ["input.local_shell_call", "input.web_search_call"]


def test_tools_of_codex() -> None:
    tools = Tools()
    function = {"type": "function", "name": "f", "description": "d", "strict": False}
    nested = {"type": "function", "name": "g", "parameters": {"type": "object"}, "strict": True}
    tools.read(
        [
            function,
            {"type": "namespace", "name": "n", "tools": [nested, {"type": "custom", "name": "c"}]},
            {"type": "web_search", "external_web_access": True},
        ]
    )
    f, g = tools.functions
    assert (f.name, f.description, f.parameters, f.strict) == ("f", "d", {}, False)
    assert (g.name, g.parameters, g.strict) == ("n.g", {"type": "object"}, True)
    assert tools.namespaces == {"n.g": ("n", "g")}
    assert tools.skipped == ["tools.custom", "tools.web_search"]
    named = {"type": "function", "name": "f"}
    spaced = {"type": "function", "name": "g", "namespace": "n"}
    for given, choice in (
        (None, ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        (named, ToolChoice("required", ("f",))),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [spaced, {"type": "web_search"}]},
            ToolChoice("auto", ("n.g",)),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [named]},
            ToolChoice("required", ("f",)),
        ),
    ):
        assert tools.choice(given, True) == choice
    assert tools.choice("auto", False) == ToolChoice("auto", parallel=False)


def test_what_is_no_text_is_left_out_of_the_output_of_tools() -> None:
    parts = [
        {"type": "input_image", "image_url": "data:image/png;base64,iVBO"},
        {"type": "input_text", "text": "a"},
        {"type": "input_file", "file_id": "f"},
    ]
    for kind in ("function_call_output", "custom_tool_call_output"):
        output = {"type": kind, "call_id": "c", "output": parts}
        items = read(output)
        assert items.messages()[0].content == (
            "[input_image left out: only text can be read here]\na\n"
            "[input_file left out: only text can be read here]"
        )
        assert items.left_out == ["input.input_image", "input.input_file"]
        with pytest.raises(ApiError, match="--lenient-media is off") as error:
            Items({}, lenient_media=False).read([output], "input")
        assert error.value.param == "input[0].output[0]"
    others: list[dict[str, Any]] = [parts[0], {"type": []}, {}]
    for part in others:
        for item in (
            {"role": "user", "content": [part]},
            {"type": "function_call_output", "call_id": "c", "output": [part]},
        ):
            if "role" in item or part is not parts[0]:
                with pytest.raises(ApiError, match="Only text"):
                    read(item)
